// The element-wise side of ops/linear.h: activations behind a product, and in front of the backward
// products the activation's gradient together with the bias's.
#include "cuda/activation.cuh"
#include "cuda/column_sums.cuh"
#include "cuda/kernels.h"
#include "ops/linear.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 256, kVectors = 2;

// Rows do not matter here: the tensor is one row of `count` elements, of which a thread does two
// vectors. slopes: bytes or of the type, and y is where the argument is; null without.
template <class T, Activation kActivation, bool kSlopes>
__global__ void __launch_bounds__(kBlock)
    activation_kernel(const T* pre, T* y, void* slopes, int64_t count) {
  constexpr bool kBytes = kSlopes && kSlopesAreBytes<T>;  // a group of these is two vectors
  const int64_t begin = int64_t(from_the_end(gridDim.x, blockIdx.x)) * kBlock * kVectors * kEight;
  const int here = int(min(count - begin, int64_t(kBlock * kVectors * kEight)));
  const auto place = [](int v) {
    const int thread = int(threadIdx.x);
    return (kBytes ? thread * kVectors + v : v * kBlock + thread) * kEight;
  };
  const auto store_here = [&]<Reuse kReuse>(T* to, int at, const Eight& eight) {
    if (at + kEight <= here) {
      store_eight<true, kReuse>(to + begin, at, here, eight);
    } else if (at < here) {
      store_eight<false, kReuse>(to + begin, at, here, eight);
    }
  };
  Packed<T> packed[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = place(v);
    if (at + kEight <= here) {
      packed[v] = load<true, Reuse::kLate>(pre + begin, at, here);
    } else if (at < here) {
      packed[v] = load<false>(pre + begin, at, here);
    }
  }
  Eight kept[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    Eight values = unpack(packed[v]);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if constexpr (kSlopes) {
        const Bent bent = gelu<kActivation, T>(values.at[i]);
        values.at[i] = bent.value;
        kept[v].at[i] = bent.slope;
      } else {
        values.at[i] = activate<kActivation, T>(values.at[i]);
      }
    }
    store_here.template operator()<Reuse::kSoon>(y, place(v), values);
    if constexpr (kSlopes && !kBytes) {
      store_here.template operator()<Reuse::kLate>(static_cast<T*>(slopes), place(v), kept[v]);
    }
  }
  if constexpr (kBytes) {
    if (place(0) >= here) return;
    uint32_t words[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      words[t] = slope_bytes({kept[0].at[2 * t], kept[0].at[2 * t + 1]},
                             {kept[1].at[2 * t], kept[1].at[2 * t + 1]});
    }
    __stcs(reinterpret_cast<uint4*>(static_cast<uint8_t*>(slopes) + begin + place(0)),
           make_uint4(words[0], words[1], words[2], words[3]));
  }
}

// dy := dy * slope(kept) in place, and its sum over rows.
template <class T, Activation kActivation, bool kWhole>
struct EpilogueTerm {
  static constexpr int kSums = 1,
                       kInFlight = (kActivation == Activation::kNone ? 16 : 8) / sizeof(T);
  static constexpr bool kBytes = kActivation == Activation::kKeptSlope && kSlopesAreBytes<T>;
  struct Loaded {
    Packed<T> dy, kept;  // of bytes, a group
  };
  T* dy;
  const void* kept;  // null for kNone
  int cols;

  __device__ Loaded load(int64_t row, int column) const {
    Loaded loaded;
    loaded.dy = cuda::load<kWhole>(dy + row * cols, column, cols);
    if constexpr (kBytes) {
      const int64_t group = (row * cols + column) / SlopeBytes::kGroup;
      const uint4 four = __ldcs(static_cast<const uint4*>(kept) + group);
      loaded.kept = {{four.x, four.y, four.z, four.w}};
    } else if constexpr (kActivation != Activation::kNone) {
      const T* const own = static_cast<const T*>(kept) + row * cols;
      loaded.kept = cuda::load<kWhole, Reuse::kLate>(own, column, cols);
    }
    return loaded;
  }
  __device__ void add(const Loaded& loaded, int64_t row, int column, Eight* sums) const {
    Eight values = unpack(loaded.dy);
    if constexpr (kActivation != Activation::kNone) {
      const Eight at = unpack(loaded.kept);
      const uint32_t half = uint32_t(column) % SlopeBytes::kGroup / kEight * 2;
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        values.at[i] *= kBytes ? slope_of_byte(loaded.kept.words[i / 2], half + uint32_t(i) % 2)
                               : slope<kActivation, T>(at.at[i]);
      }
      store_eight<kWhole>(dy + row * cols, column, cols, values);
    }
    sums[0] += values;
  }
};

// What kept slopes of a tensor must be.
void check_slopes(const Tensor& slopes, const Tensor& y) {
  SNUG_CHECK(slopes.size() == y.size() && slopes.dtype == slope_type(y.dtype) &&
             (slopes.dtype != DType::kSlope8 || y.cols % SlopeBytes::kGroup == 0));
}

template <class T>
void start(void (*kernel)(const T*, T*, void*, int64_t), const Tensor& pre, const Tensor& y,
           const Tensor& slopes, cudaStream_t stream) {
  SNUG_CHECK(pre.size() == y.size() && pre.dtype == y.dtype);
  const int64_t blocks = ceil_div(y.size(), kBlock * kVectors * kEight);
  kernel<<<unsigned(blocks), kBlock, 0, stream>>>(data_of<T>(pre), data_of<T>(y), slopes.data,
                                                  y.size());
  SNUG_CUDA_LAUNCHED("activation");
}

}  // namespace

void launch_activation(Activation activation, const Tensor& pre, const Tensor& y,
                       const Launch& call) {
  with_type(y.dtype, [&]<class T>() {
    with_bending(activation, [&]<Activation kActivation>() {
      start<T>(activation_kernel<T, kActivation, false>, pre, y, {}, call.stream);
    });
  });
}

void launch_gelu_and_slope(Activation form, const Tensor& y, const Tensor& slopes,
                           const Launch& call) {
  check_slopes(slopes, y);
  with_type(y.dtype, [&]<class T>() {
    with_gelu(form, [&]<Activation kForm>() {
      start<T>(activation_kernel<T, kForm, true>, y, y, slopes, call.stream);
    });
  });
}

void launch(const ActivationAgain& op, const Launch& call) {
  launch_activation(op.activation, call.in[0], call.out[0], call);
}

void launch(const LinearEpilogueGradient& op, const Launch& call) {
  const Tensor &dy = call.in[0], &db = call.out[1];
  const bool bends = op.activation != Activation::kNone;
  if (!bends && !db) return;
  if (op.activation == Activation::kKeptSlope) check_slopes(call.in[1], dy);
  SNUG_CHECK(!db || call.workspace.size() >= column_sum_bytes(dy.cols, 1));
  float* const partials = db ? reinterpret_cast<float*>(call.workspace.data()) : nullptr;
  with_type(dy.dtype, [&]<class T>() {
    with_bool(dy.cols % kEight == 0, [&]<bool kWhole>() {
      const auto launch_term = [&]<Activation kActivation>() {
        const EpilogueTerm<T, kActivation, kWhole> term = {
            data_of<T>(dy), bends ? call.in[1].data : nullptr, int(dy.cols)};
        launch_column_sums(term, dy.rows, dy.cols, partials, {{db.f32()}}, call.stream);
      };
      if (!bends) return launch_term.template operator()<Activation::kNone>();
      if (op.activation == Activation::kKeptSlope) {
        return launch_term.template operator()<Activation::kKeptSlope>();
      }
      with_bending(op.activation, launch_term);
    });
  });
}

}  // namespace snug::cuda

// The element-wise side of ops/linear.h: activations behind a product, and in front of the backward
// products the activation's gradient together with the bias's.
#include "cuda/activation.cuh"
#include "cuda/column_sums.cuh"
#include "cuda/kernels.h"
#include "ops/linear.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 256, kVectors = 2;

// What is left in the argument's place.
enum class Argument { kStays, kBecomesSlope };

// Rows do not matter here: the tensor is one row of `count` elements, of which a thread does two
// vectors.
template <class T, Activation kActivation, Argument kArgument>
__global__ void __launch_bounds__(kBlock) activation_kernel(T* pre, T* y, int64_t count) {
  const int64_t begin = int64_t(from_the_end(gridDim.x, blockIdx.x)) * kBlock * kVectors * kEight;
  const int here = int(min(count - begin, int64_t(kBlock * kVectors * kEight)));
  Packed<T> packed[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kBlock + int(threadIdx.x)) * kEight;
    if (at + kEight <= here) {
      packed[v] = load<true, Reuse::kLate>(pre + begin, at, here);
    } else if (at < here) {
      packed[v] = load<false>(pre + begin, at, here);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kBlock + int(threadIdx.x)) * kEight;
    Eight values = unpack(packed[v]), slopes;
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if constexpr (kArgument == Argument::kBecomesSlope) {
        const Bent bent = gelu<kActivation, T>(values.at[i]);
        values.at[i] = bent.value;
        slopes.at[i] = bent.slope;
      } else {
        values.at[i] = activate<kActivation, T>(values.at[i]);
      }
    }
    const auto store_here = [&]<Reuse kReuse>(T* to, const Eight& eight) {
      if (at + kEight <= here) {
        store_eight<true, kReuse>(to + begin, at, here, eight);
      } else if (at < here) {
        store_eight<false, kReuse>(to + begin, at, here, eight);
      }
    };
    store_here.template operator()<Reuse::kSoon>(y, values);
    if constexpr (kArgument == Argument::kBecomesSlope) {
      store_here.template operator()<Reuse::kLate>(pre, slopes);
    }
  }
}

// dy := dy * slope(kept) in place, and its sum over rows.
template <class T, Activation kActivation, bool kWhole>
struct EpilogueTerm {
  static constexpr int kSums = 1,
                       kInFlight = (kActivation == Activation::kNone ? 16 : 8) / sizeof(T);
  struct Loaded {
    Packed<T> dy, kept;
  };
  T* dy;
  const T* kept;  // null for kNone
  int cols;

  __device__ Loaded load(int64_t row, int column) const {
    Loaded loaded;
    loaded.dy = cuda::load<kWhole>(dy + row * cols, column, cols);
    if constexpr (kActivation != Activation::kNone) {
      loaded.kept = cuda::load<kWhole, Reuse::kLate>(kept + row * cols, column, cols);
    }
    return loaded;
  }
  __device__ void add(const Loaded& loaded, int64_t row, int column, Eight* sums) const {
    Eight values = unpack(loaded.dy);
    if constexpr (kActivation != Activation::kNone) {
      const Eight at = unpack(loaded.kept);
#pragma unroll
      for (int i = 0; i < kEight; ++i) values.at[i] *= slope<kActivation, T>(at.at[i]);
      store_eight<kWhole>(dy + row * cols, column, cols, values);
    }
    sums[0] += values;
  }
};

template <class T>
void start(void (*kernel)(T*, T*, int64_t), const Tensor& pre, const Tensor& y,
           cudaStream_t stream) {
  SNUG_CHECK(pre.size() == y.size() && pre.dtype == y.dtype);
  const int64_t blocks = ceil_div(y.size(), kBlock * kVectors * kEight);
  kernel<<<unsigned(blocks), kBlock, 0, stream>>>(data_of<T>(pre), data_of<T>(y), y.size());
  SNUG_CUDA_LAUNCHED("activation");
}

}  // namespace

void launch_activation(Activation activation, const Tensor& pre, const Tensor& y,
                       const Launch& call) {
  with_type(y.dtype, [&]<class T>() {
    with_bending(activation, [&]<Activation kActivation>() {
      start<T>(activation_kernel<T, kActivation, Argument::kStays>, pre, y, call.stream);
    });
  });
}

void launch_gelu_and_slope(Activation form, const Tensor& pre, const Tensor& y,
                           const Launch& call) {
  with_type(y.dtype, [&]<class T>() {
    with_gelu(form, [&]<Activation kForm>() {
      start<T>(activation_kernel<T, kForm, Argument::kBecomesSlope>, pre, y, call.stream);
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
  SNUG_CHECK(!db || call.workspace.size() >= column_sum_bytes(dy.cols, 1));
  float* const partials = db ? reinterpret_cast<float*>(call.workspace.data()) : nullptr;
  with_type(dy.dtype, [&]<class T>() {
    with_bool(dy.cols % kEight == 0, [&]<bool kWhole>() {
      const auto launch_term = [&]<Activation kActivation>() {
        const EpilogueTerm<T, kActivation, kWhole> term = {
            data_of<T>(dy), bends ? data_of<T>(call.in[1]) : nullptr, int(dy.cols)};
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

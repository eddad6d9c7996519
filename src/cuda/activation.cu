// The element-wise side of ops/linear.h: activations behind a product, and in front of the backward products the
// activation's gradient together with the bias's.
#include "cuda/column_sums.cuh"
#include "cuda/kernels.h"
#include "ops/linear.h"

namespace snug::cuda {
namespace {

__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLog2E = 1.44269504f;

// exp(-x^2 / 2), and cdf(-|x|) of the standard normal distribution as that times r(t) t, t = 1 / (1 + 0.3 |x|). Unlike
// 1 + erf the tail has a small relative error everywhere; the polynomial is the one of ops/math-inl.h.
struct NormalTail {
  float bell, tail;
};
__device__ inline NormalTail normal_tail(float x) {
  const float bell = exp2_of(x * x * (-0.5f * kLog2E));
  const float t = fast_reciprocal(fmaf(fabsf(x), 0.3f, 1.0f));
  float r = 0.0360364008f;
  r = fmaf(r, t, -0.158714059f);
  r = fmaf(r, t, 0.208965431f);
  r = fmaf(r, t, -0.0560967233f);
  r = fmaf(r, t, 0.129843902f);
  r = fmaf(r, t, 0.0995229037f);
  r = fmaf(r, t, 0.12081692f);
  r = fmaf(r, t, 0.119625164f);
  return {bell, bell * (r * t)};
}

// tanh(z) = 2 sigmoid(2z) - 1 turns the tanh form of GELU into x * sigmoid(2z), z = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kGeluTanhScale = 2.0f * 0.79788456f, kGeluTanhCube = 0.044715f;
struct Sigmoid {
  float value, complement;  // which is 1 - value
};
__device__ inline Sigmoid gelu_tanh_gate(float x) {
  const float twice_z = kGeluTanhScale * x * fmaf(x * x, kGeluTanhCube, 1.0f);
  const float e = exp2_of(-kLog2E * fmaxf(twice_z, -80.0f));  // stays finite
  const float value = fast_reciprocal(1.0f + e);
  return {value, value * e};
}

template <Activation kActivation>
__device__ inline float activate(float x) {
  if constexpr (kActivation == Activation::kGelu) {
    return fmaf(-fabsf(x), normal_tail(x).tail, fmaxf(x, 0.0f));  // x cdf(x) on either side of zero
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return x * gelu_tanh_gate(x).value;
  } else if constexpr (kActivation == Activation::kTanh) {
    return tanhf(x);
  } else {
    static_assert(kActivation == Activation::kRelu);
    return x < 0.0f ? 0.0f : x;  // lets NaN through
  }
}

// The derivative at what was kept: x, or y for tanh.
template <Activation kActivation>
__device__ inline float slope(float kept) {
  if constexpr (kActivation == Activation::kGelu) {
    constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
    const NormalTail normal = normal_tail(kept);
    const float cdf = kept < 0.0f ? normal.tail : 1.0f - normal.tail;
    return fmaf(kept * kDensity, normal.bell, cdf);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const Sigmoid gate = gelu_tanh_gate(kept);
    const float dz = fmaf(kept * kept, 3.0f * kGeluTanhCube, 1.0f);
    return fmaf(kept * gate.value * gate.complement * kGeluTanhScale, dz, gate.value);
  } else if constexpr (kActivation == Activation::kTanh) {
    return fmaf(-kept, kept, 1.0f);
  } else if constexpr (kActivation == Activation::kRelu) {
    return kept > 0.0f ? 1.0f : 0.0f;
  } else {
    return 1.0f;
  }
}

// Calls f with the activation as a compile-time constant; not for kNone.
template <class F>
void with_bending(Activation activation, const F& f) {
  if (activation == Activation::kGelu) return f.template operator()<Activation::kGelu>();
  if (activation == Activation::kGeluTanh) return f.template operator()<Activation::kGeluTanh>();
  if (activation == Activation::kTanh) return f.template operator()<Activation::kTanh>();
  SNUG_CHECK(activation == Activation::kRelu);
  return f.template operator()<Activation::kRelu>();
}

constexpr int kBlock = 256, kVectors = 2;

// Rows do not matter here: the tensor is one row of `count` elements, of which a thread does two vectors.
template <class T, Activation kActivation>
__global__ void __launch_bounds__(kBlock) activation_kernel(const T* pre, T* y, int64_t count) {
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
    Eight values = unpack(packed[v]);
#pragma unroll
    for (int i = 0; i < kEight; ++i) values.at[i] = activate<kActivation>(values.at[i]);
    if (at + kEight <= here) {
      store_eight<true>(y + begin, at, here, values);
    } else if (at < here) {
      store_eight<false>(y + begin, at, here, values);
    }
  }
}

// dy := dy * slope(kept) in place, and its sum over rows.
template <class T, Activation kActivation, bool kWhole>
struct EpilogueTerm {
  static constexpr int kSums = 1, kInFlight = (kActivation == Activation::kNone ? 16 : 8) / sizeof(T);
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
      for (int i = 0; i < kEight; ++i) values.at[i] *= slope<kActivation>(at.at[i]);
      store_eight<kWhole>(dy + row * cols, column, cols, values);
    }
    sums[0] += values;
  }
};

}  // namespace

void launch_activation(Activation activation, const Tensor& pre, const Tensor& y, const Launch& call) {
  SNUG_CHECK(pre.size() == y.size() && pre.dtype == y.dtype);
  const int64_t blocks = ceil_div(y.size(), kBlock * kVectors * kEight);
  with_type(y.dtype, [&]<class T>() {
    with_bending(activation, [&]<Activation kActivation>() {
      activation_kernel<T, kActivation>
          <<<unsigned(blocks), kBlock, 0, call.stream>>>(data_of<T>(pre), data_of<T>(y), y.size());
      SNUG_CUDA_LAUNCHED("activation");
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
      bends ? with_bending(op.activation, launch_term) : launch_term.template operator()<Activation::kNone>();
    });
  });
}

}  // namespace snug::cuda

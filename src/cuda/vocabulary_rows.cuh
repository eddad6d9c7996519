// Rows of a language model's logits on their way to the loss (ops/vocabulary_loss.h): one kernel
// turns each row into its loss and, in place, its gradient. A row is read from memory once where it
// fits into shared memory beside the block's needs, which 50257 bf16 do from sm_80 on (not all
// cards of sm_86 and 89); elsewhere, and where a teacher's row comes with it, the second reading
// comes from the cache.
#pragma once

#include "cuda/rows.cuh"
#include "ops/distillation.h"

namespace snug::cuda::vocabulary_kernels {

inline constexpr int kBlock = 512, kWarps = kBlock / kWarp;  // of one row
inline constexpr float kLog2E = 1.44269504f;
inline constexpr double kLn2 = 0.69314718055994531;
// Below every logit, and small enough to be scaled and subtracted: what a thread without elements
// starts from.
inline constexpr float kLowest = -1e30f;

// The largest of some logits, and the sum of 2^(logit * rate - origin) over them: one multiply-add
// in front of each exponential. The origin is rounded, but everybody who has the same `most` rounds
// alike. The rate is kLog2E over the softmax's temperature.
struct Softmax {
  float most = kLowest, sum = 0.0f;

  // Not to become a part of a multiply-add: where two are subtracted, their rounding must be the
  // same.
  __device__ float origin(float rate) const { return __fmul_rn(most, rate); }
  __device__ float term(float logit, float rate) const {
    return exp2_of(fmaf(logit, rate, -origin(rate)));
  }
  __device__ void raise(float to, float rate) {  // to >= most
    const float before = origin(rate);
    most = to;
    sum *= exp2_of(before - origin(rate));
  }
  __device__ void add(const Eight& logits, float rate) {
    float highest = logits.at[0];
#pragma unroll
    for (int i = 1; i < kEight; ++i) highest = fmaxf(highest, logits.at[i]);
    if (highest > most) raise(highest, rate);
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum += term(logits.at[i], rate);  // NaN comes through
  }
};

// Over the block, the same bits in each thread.
__device__ inline Softmax block_softmax(Softmax own, float rate) {
  __shared__ Softmax of_warp[kWarps];
  float most = own.most;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  }
  own.raise(most, rate);
  own.sum = lanes_sum(own.sum);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = own;
  __syncthreads();
  Softmax total = of_warp[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total.most = fmaxf(total.most, of_warp[w].most);
  total.sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    Softmax one = of_warp[w];
    one.raise(total.most, rate);
    total.sum += one.sum;
  }
  return total;
}

// The vector at `column`; behind the vocabulary it is minus infinity, whatever lies there.
template <class T>
__device__ Eight logits_of(const Packed<T>& packed, int column, int vocabulary) {
  Eight values = unpack(packed);
  if (column + kEight > vocabulary) {
#pragma unroll
    for (int n = 0; n < kEight; ++n) {
      if (column + n >= vocabulary) values.at[n] = -INFINITY;
    }
  }
  return values;
}

// Calls f(column, packed, values) for the thread's vectors of a row of `stride` columns.
template <class T, class F>
__device__ void over_vectors(const T* row, int stride, int vocabulary, const F& f) {
  constexpr int kInFlight = 16 / sizeof(T);
  for (int base = int(threadIdx.x) * kEight; base < stride; base += kInFlight * kBlock * kEight) {
    Packed<T> packed[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int column = base + i * kBlock * kEight;
      if (column < stride) packed[i] = load<true>(row, column, stride);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int column = base + i * kBlock * kEight;
      if (column >= stride) break;
      f(column, packed[i], logits_of(packed[i], column, vocabulary));
    }
  }
}

// Calls f(column, values, others) for the thread's vectors of two rows.
template <class T, class F>
__device__ void over_pairs(const T* row, const T* other, int stride, int vocabulary, const F& f) {
  constexpr int kInFlight = 8 / sizeof(T);
  for (int base = int(threadIdx.x) * kEight; base < stride; base += kInFlight * kBlock * kEight) {
    Packed<T> packed[kInFlight], others[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int column = base + i * kBlock * kEight;
      if (column >= stride) break;
      packed[i] = load<true>(row, column, stride);
      others[i] = load<true>(other, column, stride);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int column = base + i * kBlock * kEight;
      if (column >= stride) break;
      f(column, logits_of(packed[i], column, vocabulary), logits_of(others[i], column, vocabulary));
    }
  }
}

template <class T>
struct RowArguments {
  T* logits;                  // [rows, stride], become their gradient
  const T* teacher;           // [rows, stride], or null
  double* losses;             // [rows], not yet scaled
  const int32_t* target_ids;  // of the chunk
  int64_t first;              // target of the chunk's first row
  int stride, vocabulary;
  Distillation distillation;
  const StepState* state;
};

// What a row that is not there has: no loss, gradient zero.
template <class T, bool kGradient>
__device__ void leave_row(const RowArguments<T>& a, int64_t row) {
  if (threadIdx.x == 0) a.losses[row] = 0.0;
  if constexpr (kGradient) {
    for (int column = int(threadIdx.x) * kEight; column < a.stride; column += kBlock * kEight) {
      store<true>(a.logits + row * a.stride, column, a.stride, Packed<T>());
    }
  }
}

// One block per row. kGradient: writes (p - onehot) * loss_scale over the logits, zeros behind the
// vocabulary and in rows that are not there. kStaged: keeps the row in shared memory in between.
template <class T, bool kGradient, bool kStaged>
__global__ void __launch_bounds__(kBlock, 2) vocabulary_loss_kernel(const RowArguments<T> a) {
  extern __shared__ uint4 shared_row[];
  T* const staged = reinterpret_cast<T*>(shared_row);
  const int64_t row = blockIdx.x;
  T* const logits = a.logits + row * a.stride;
  if (a.first + row >= a.state->targets) return leave_row<T, kGradient>(a, row);
  const int target = a.target_ids[row];
  const float at_target = to_float(logits[target]);  // before anybody writes
  Softmax own;
  over_vectors(logits, a.stride, a.vocabulary,
               [&](int column, const Packed<T>& packed, const Eight& values) {
                 if constexpr (kStaged) store<true>(staged, column, a.stride, packed);
                 own.add(values, kLog2E);
               });
  const Softmax all = block_softmax(own, kLog2E);
  if (threadIdx.x == 0) {
    // In units of log 2, where terms() has its zero; the difference first, since logits may be
    // huge.
    const double distance = double(all.origin(kLog2E)) - double(at_target) * double(kLog2E);
    a.losses[row] = kLn2 * (distance + log2(double(all.sum)));
  }
  if constexpr (kGradient) {
    const float scale = a.state->loss_scale, factor = scale / all.sum;
    over_vectors(kStaged ? staged : logits, a.stride, a.vocabulary,
                 [&](int column, const Packed<T>&, const Eight& values) {
                   Eight d;
#pragma unroll
                   for (int i = 0; i < kEight; ++i) {
                     d.at[i] = all.term(values.at[i], kLog2E) * factor;
                   }
                   if (unsigned(target - column) < unsigned(kEight)) {
#pragma unroll
                     for (int i = 0; i < kEight; ++i) {
                       d.at[i] -= column + i == target ? scale : 0.0f;
                     }
                   }
                   store_eight<true>(logits, column, a.stride, d);
                 });
  }
}

// The same with a teacher, by the formulas of ops/distillation.h: always with the gradient. The
// divergence is summed in the second reading, where every term is a difference of two logarithms of
// probabilities, however large logits are.
template <class T>
__global__ void __launch_bounds__(kBlock, 2) distilled_loss_kernel(const RowArguments<T> a) {
  const int64_t row = blockIdx.x;
  T* const logits = a.logits + row * a.stride;
  const T* const teacher = a.teacher + row * a.stride;
  if (a.first + row >= a.state->targets) return leave_row<T, true>(a, row);
  const float temperature = a.distillation.temperature, alpha = a.distillation.alpha,
              rate = kLog2E / temperature;
  const int target = a.target_ids[row];
  const float at_target = to_float(logits[target]);  // before anybody writes
  Softmax own_hard, own_soft, own_taught;            // of the student, of both over the temperature
  over_pairs(logits, teacher, a.stride, a.vocabulary, [&](int, const Eight& s, const Eight& t) {
    own_hard.add(s, kLog2E);
    own_soft.add(s, rate);
    own_taught.add(t, rate);
  });
  const Softmax hard = block_softmax(own_hard, kLog2E);
  __syncthreads();  // each of them takes the same place in shared memory
  const Softmax soft = block_softmax(own_soft, rate);
  __syncthreads();
  const Softmax taught = block_softmax(own_taught, rate);
  const float scale = a.state->loss_scale, hard_scale = scale * (1.0f - alpha),
              share = scale * alpha * temperature;
  const float hard_factor = hard_scale / hard.sum, soft_factor = share / soft.sum,
              taught_factor = share / taught.sum;
  const float log_ratio = log2f(soft.sum) - log2f(taught.sum);
  float divergence = 0.0f;  // times taught.sum, in units of log 2
  over_pairs(logits, teacher, a.stride, a.vocabulary,
             [&](int column, const Eight& s, const Eight& t) {
               Eight d;
#pragma unroll
               for (int i = 0; i < kEight; ++i) {
                 const float q = taught.term(t.at[i], rate);
                 // Behind the vocabulary both logits are minus infinity, and q zero.
                 const float log_q_over_p = fmaf(t.at[i], rate, -taught.origin(rate)) -
                                            fmaf(s.at[i], rate, -soft.origin(rate)) + log_ratio;
                 divergence += q == 0.0f ? 0.0f : q * log_q_over_p;
                 d.at[i] = hard.term(s.at[i], kLog2E) * hard_factor +
                           (soft.term(s.at[i], rate) * soft_factor - q * taught_factor);
               }
               if (unsigned(target - column) < unsigned(kEight)) {
#pragma unroll
                 for (int i = 0; i < kEight; ++i) {
                   d.at[i] -= column + i == target ? hard_scale : 0.0f;
                 }
               }
               store_eight<true>(logits, column, a.stride, d);
             });
  const double all_divergence = kLn2 * block_sum(double(divergence)) / double(taught.sum);
  if (threadIdx.x == 0) {
    const double distance = double(hard.origin(kLog2E)) - double(at_target) * double(kLog2E);
    const double cross_entropy = kLn2 * (distance + log2(double(hard.sum)));
    a.losses[row] = (1.0 - double(alpha)) * cross_entropy +
                    double(alpha) * double(temperature) * double(temperature) * all_divergence;
  }
}

// What a block may have of shared memory beside what the kernels declare.
inline size_t shared_bytes_for_rows() {
  constexpr size_t kDeclared = 1024;
  int device = 0, bytes = 0;
  SNUG_CUDA(cudaGetDevice(&device));
  SNUG_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return size_t(bytes) - kDeclared;
}

template <class T, bool kGradient>
void launch_rows(const RowArguments<T>& arguments, int64_t rows, cudaStream_t stream) {
  if (arguments.teacher) {
    SNUG_CHECK(kGradient);
    distilled_loss_kernel<T><<<unsigned(rows), kBlock, 0, stream>>>(arguments);
    SNUG_CUDA_LAUNCHED("distilled_loss");
    return;
  }
  const size_t bytes = size_t(arguments.stride) * sizeof(T);
  const bool staged = kGradient && bytes <= shared_bytes_for_rows();
  const auto kernel = staged ? vocabulary_loss_kernel<T, kGradient, kGradient>
                             : vocabulary_loss_kernel<T, kGradient, false>;
  if (staged) {
    SNUG_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
    SNUG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared));
  }
  kernel<<<unsigned(rows), kBlock, staged ? bytes : 0, stream>>>(arguments);
  SNUG_CUDA_LAUNCHED("vocabulary_loss");
}

}  // namespace snug::cuda::vocabulary_kernels

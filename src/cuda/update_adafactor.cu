// Kernels of optim/adafactor.h, tensor by tensor. A matrix takes five: means of rows, means of
// columns, the mean of the former, the size of the update, and the update. Sums are made in a fixed
// order. Where the step is not applied only the last does anything: it sets gradients to zero.
#include "cuda/update.cuh"
#include "optim/adafactor.h"

namespace snug::cuda {
namespace {

constexpr int kMostThreads = 1024;
// Blocks that add up squares of the update; the last of the partial sums' places holds the mean of
// rows.
constexpr int kMostBlocks = kNormPartials - 1;

// A tensor on the device.
struct FactoredTensor {
  std::byte* w;           // see Weights
  std::byte* g;           // see Gradients
  float *rows, *columns;  // second moments; rows is unused for a vector
  void* copy;             // or null
  int64_t row_count, cols;
  GradientForm gradient_form;
  bool split, decays, keeps_gradient;
  const UpdateFactors* factors;
  const UpdateResult* result;
  double* partials;

  FactoredTensor(const UpdateArguments& a, const UpdateTensor& t)
      : w(a.arena + t.weight),
        g(a.arena + t.gradient),
        rows(reinterpret_cast<float*>(a.arena + t.state)),
        columns(rows + t.rows),
        copy(t.copy < 0 ? nullptr : a.arena + t.copy),
        row_count(t.rows),
        cols(t.cols),
        gradient_form(t.gradient_form),
        split(t.split),
        decays(t.decays),
        keeps_gradient(t.keeps_gradient),
        factors(a.factors),
        result(a.result),
        partials(a.partials) {}

  __device__ bool applied() const { return result->applied; }
  __device__ double& mean_row() const { return partials[kMostBlocks]; }
  __device__ float gradient(int64_t i) const {
    float value = 0.0f;
    with_gradient_form(gradient_form,
                       [&]<GradientForm kForm>() { value = Gradients<kForm>(g).one(i); });
    return value;
  }
  __device__ void leave_gradient(int64_t i) const {
    if (!keeps_gradient) Gradients<GradientForm::kExact>(g).clear_one(i);
  }
  __device__ float gradient_scale() const { return factors->gradient_scale * result->clip; }
  // The mean of squared gradients into a second moment.
  __device__ void mix(float& moment, double mean) const {
    const double fresh = mean + kAdafactorSmallest;
    moment = float(double(factors->old_v) * double(moment) + double(factors->new_v) * fresh);
  }
  // From the sum of squares of the update: what it is multiplied with.
  __device__ float rate(double squares, int64_t size) const {
    return float(double(factors->learning_rate) /
                 fmax(1.0, sqrt(squares / double(size)) / kAdafactorClip));
  }
  template <class C>
  __device__ void apply(int64_t i, float update, float rate) const {
    const float keep = decays ? factors->keep : 1.0f;
    with_split<C>(split, [&]<bool kSplit>() {
      const Weights<C, kSplit> weights(w, static_cast<C*>(copy));
      weights.set_one(i, fmaf(-rate, update, __fmul_rn(weights.one(i), keep)));
    });
  }
};

// One warp per row.
__global__ void __launch_bounds__(kUpdateBlock)
    adafactor_rows_warp_per_row(const FactoredTensor t) {
  const int64_t row = (int64_t(blockIdx.x) * kUpdateBlock + int(threadIdx.x)) / kWarp;
  if (row >= t.row_count || !t.applied()) return;
  float sum = 0.0f;
  for (int64_t c = int(threadIdx.x) % kWarp; c < t.cols; c += kWarp) {
    const float g = t.gradient(row * t.cols + c);
    sum = fmaf(g, g, sum);
  }
  const double squares = lanes_sum(double(sum)), scale = double(t.gradient_scale());
  if (threadIdx.x % kWarp == 0) t.mix(t.rows[row], scale * scale * squares / double(t.cols));
}

// A block has 32 columns; every 32nd row is one of its warps'.
__global__ void __launch_bounds__(kMostThreads) adafactor_columns(const FactoredTensor t) {
  __shared__ float sums[kWarp][kWarp + 1];  // [rows' warp, column]
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int64_t column = int64_t(blockIdx.x) * kWarp + lane;
  if (!t.applied()) return;
  float sum = 0.0f;
  if (column < t.cols) {
#pragma unroll 4
    for (int64_t row = warp; row < t.row_count; row += kWarp) {
      const float g = t.gradient(row * t.cols + column);
      sum = fmaf(g, g, sum);
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  // Transposed: a warp adds up a column.
  const double squares = lanes_sum(double(sums[lane][warp])), scale = double(t.gradient_scale());
  const int64_t own = int64_t(blockIdx.x) * kWarp + warp;
  if (lane == 0 && own < t.cols) {
    t.mix(t.columns[own], scale * scale * squares / double(t.row_count));
  }
}

__global__ void __launch_bounds__(kMostThreads) adafactor_mean_of_rows(const FactoredTensor t) {
  if (!t.applied()) return;
  double sum = 0.0;
  for (int64_t row = threadIdx.x; row < t.row_count; row += kMostThreads) {
    sum += double(t.rows[row]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) t.mean_row() = sum / double(t.row_count);
}

__device__ inline float row_factor(const FactoredTensor& t, int64_t row) {
  return float(1.0 / sqrt(double(t.rows[row]) / t.mean_row())) * t.gradient_scale();
}

__global__ void __launch_bounds__(kUpdateBlock) adafactor_squares(const FactoredTensor t) {
  if (!t.applied()) return;
  double total = 0.0;
  for (int64_t row = blockIdx.x; row < t.row_count; row += gridDim.x) {
    const float of_row = row_factor(t, row);
    float sum = 0.0f;
    for (int64_t c = threadIdx.x; c < t.cols; c += kUpdateBlock) {
      const float u = t.gradient(row * t.cols + c) * (1.0f / sqrtf(t.columns[c]) * of_row);
      sum = fmaf(u, u, sum);
    }
    total += double(sum);
  }
  total = block_sum(total);
  if (threadIdx.x == 0) t.partials[blockIdx.x] = total;
}

// As many blocks as the squares had.
template <class C>
__global__ void __launch_bounds__(kUpdateBlock) adafactor_apply(const FactoredTensor t) {
  const bool applied = t.applied();
  float rate = 0.0f;
  if (applied) {
    double squares = 0.0;
    for (int i = int(threadIdx.x); i < int(gridDim.x); i += kUpdateBlock) squares += t.partials[i];
    rate = t.rate(block_sum(squares), t.row_count * t.cols);
  }
  for (int64_t row = blockIdx.x; row < t.row_count; row += gridDim.x) {
    const float of_row = applied ? row_factor(t, row) : 0.0f;
    for (int64_t c = threadIdx.x; c < t.cols; c += kUpdateBlock) {
      const int64_t i = row * t.cols + c;
      if (applied) t.apply<C>(i, t.gradient(i) * (1.0f / sqrtf(t.columns[c]) * of_row), rate);
      t.leave_gradient(i);
    }
  }
}

// One block, since norms and biases are small.
template <class C>
__global__ void __launch_bounds__(kMostThreads) adafactor_vector_kernel(const FactoredTensor t) {
  const bool applied = t.applied();
  const float scale = applied ? t.gradient_scale() : 0.0f;
  const auto update = [&](int64_t i) { return scale * t.gradient(i) / sqrtf(t.columns[i]); };
  float rate = 0.0f;
  if (applied) {
    double squares = 0.0;
    for (int64_t i = threadIdx.x; i < t.cols; i += kMostThreads) {
      const double g = double(scale) * double(t.gradient(i));
      t.mix(t.columns[i], g * g);
      const double u = double(update(i));
      squares += u * u;
    }
    rate = t.rate(block_sum(squares), t.cols);
  }
  for (int64_t i = threadIdx.x; i < t.cols; i += kMostThreads) {
    if (applied) t.apply<C>(i, update(i), rate);
    t.leave_gradient(i);
  }
}

template <class C>
void launch_matrix(const FactoredTensor& t, cudaStream_t stream) {
  adafactor_rows_warp_per_row<<<unsigned(ceil_div(t.row_count, kUpdateBlock / kWarp)), kUpdateBlock,
                                0, stream>>>(t);
  SNUG_CUDA_LAUNCHED("adafactor_rows");
  adafactor_columns<<<unsigned(ceil_div(t.cols, kWarp)), kMostThreads, 0, stream>>>(t);
  SNUG_CUDA_LAUNCHED("adafactor_columns");
  adafactor_mean_of_rows<<<1, kMostThreads, 0, stream>>>(t);
  SNUG_CUDA_LAUNCHED("adafactor_mean_of_rows");
  const auto blocks = unsigned(std::min<int64_t>(kMostBlocks, t.row_count));
  adafactor_squares<<<blocks, kUpdateBlock, 0, stream>>>(t);
  SNUG_CUDA_LAUNCHED("adafactor_squares");
  adafactor_apply<C><<<blocks, kUpdateBlock, 0, stream>>>(t);
  SNUG_CUDA_LAUNCHED("adafactor_apply");
}

}  // namespace

void launch_adafactor(const UpdateArguments& arguments, cudaStream_t stream) {
  with_type(arguments.copy_dtype, [&]<class C>() {
    for (const UpdateTensor& one : arguments.tensors) {
      const FactoredTensor tensor(arguments, one);
      if (one.rows > 0) {
        launch_matrix<C>(tensor, stream);
      } else {
        adafactor_vector_kernel<C><<<1, kMostThreads, 0, stream>>>(tensor);
        SNUG_CUDA_LAUNCHED("adafactor_vector");
      }
    }
  });
}

}  // namespace snug::cuda

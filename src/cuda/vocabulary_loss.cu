// Kernels of ops/vocabulary_loss.h. Per chunk of target rows: the product gives the logits, one kernel turns each row
// into its loss and, in place, its gradient, and the other products take that. A row is read from memory once where it
// fits into shared memory beside the block's needs, which 50257 bf16 do from sm_80 on (not all cards of sm_86 and 89);
// elsewhere the second reading comes from the cache.
#include "cuda/column_sums.cuh"
#include "cuda/kernels.h"
#include "cuda/products.h"
#include "ops/vocabulary_loss.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 512, kWarps = kBlock / kWarp;
constexpr float kLog2E = 1.44269504f;
constexpr double kLn2 = 0.69314718055994531;
// Below every logit, and small enough to be scaled and subtracted: what a thread without elements starts from.
constexpr float kLowest = -1e30f;

// The largest of some logits, and the sum of 2^(logit * kLog2E - origin) over them: one multiply-add in front of each
// exponential. The origin is rounded, but everybody who has the same `most` rounds alike.
struct Softmax {
  float most = kLowest, sum = 0.0f;

  // Not to become a part of a multiply-add: where two are subtracted, their rounding must be the same.
  __device__ float origin() const { return __fmul_rn(most, kLog2E); }
  __device__ float term(float logit) const { return exp2_of(fmaf(logit, kLog2E, -origin())); }
  __device__ void raise(float to) {  // to >= most
    const float before = origin();
    most = to;
    sum *= exp2_of(before - origin());
  }
  __device__ void add(const Eight& logits) {
    float highest = logits.at[0];
#pragma unroll
    for (int i = 1; i < kEight; ++i) highest = fmaxf(highest, logits.at[i]);
    if (highest > most) raise(highest);
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum += term(logits.at[i]);  // NaN comes through
  }
};

// Over the block, the same bits in each thread.
__device__ Softmax block_softmax(Softmax own) {
  __shared__ Softmax of_warp[kWarps];
  float most = own.most;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  own.raise(most);
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
    one.raise(total.most);
    total.sum += one.sum;
  }
  return total;
}

// Calls f(column, packed, values) for the thread's vectors of a row of `stride` columns; values behind the vocabulary
// are minus infinity, whatever lies there.
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
      Eight values = unpack(packed[i]);
      if (column + kEight > vocabulary) {
#pragma unroll
        for (int n = 0; n < kEight; ++n) {
          if (column + n >= vocabulary) values.at[n] = -INFINITY;
        }
      }
      f(column, packed[i], values);
    }
  }
}

template <class T>
struct Arguments {
  T* logits;       // [rows, stride], become their gradient
  double* losses;  // [rows], not yet scaled
  const int32_t* target_ids;  // of the chunk
  int64_t first;              // target of the chunk's first row
  int stride, vocabulary;
  const StepState* state;
};

// One block per row. kGradient: writes (p - onehot) * loss_scale over the logits, zeros behind the vocabulary and in rows
// that are not there. kStaged: keeps the row in shared memory in between.
template <class T, bool kGradient, bool kStaged>
__global__ void __launch_bounds__(kBlock, 2) vocabulary_loss_kernel(const Arguments<T> a) {
  extern __shared__ uint4 shared_row[];
  T* const staged = reinterpret_cast<T*>(shared_row);
  const int64_t row = blockIdx.x;
  T* const logits = a.logits + row * a.stride;
  if (a.first + row >= a.state->targets) {
    if (threadIdx.x == 0) a.losses[row] = 0.0;
    if constexpr (kGradient) {
      for (int column = int(threadIdx.x) * kEight; column < a.stride; column += kBlock * kEight) {
        store<true>(logits, column, a.stride, Packed<T>());
      }
    }
    return;
  }
  const int target = a.target_ids[row];
  const float at_target = to_float(logits[target]);  // before anybody writes
  Softmax own;
  over_vectors(logits, a.stride, a.vocabulary, [&](int column, const Packed<T>& packed, const Eight& values) {
    if constexpr (kStaged) store<true>(staged, column, a.stride, packed);
    own.add(values);
  });
  const Softmax all = block_softmax(own);
  if (threadIdx.x == 0) {
    // In units of log 2, where terms() has its zero; the difference first, since logits may be huge.
    const double distance = double(all.origin()) - double(at_target) * double(kLog2E);
    a.losses[row] = kLn2 * (distance + log2(double(all.sum)));
  }
  if constexpr (kGradient) {
    const float scale = a.state->loss_scale, factor = scale / all.sum;
    over_vectors(kStaged ? staged : logits, a.stride, a.vocabulary,
                 [&](int column, const Packed<T>&, const Eight& values) {
                   Eight d;
#pragma unroll
                   for (int i = 0; i < kEight; ++i) d.at[i] = all.term(values.at[i]) * factor;
                   if (unsigned(target - column) < unsigned(kEight)) {
#pragma unroll
                     for (int i = 0; i < kEight; ++i) d.at[i] -= column + i == target ? scale : 0.0f;
                   }
                   store_eight<true>(logits, column, a.stride, d);
                 });
  }
}

// loss += loss_scale * losses, in the same order always.
__global__ void __launch_bounds__(kBlock) add_losses_kernel(const double* losses, int rows, double* loss, const StepState* state) {
  double sum = 0.0;
  for (int row = int(threadIdx.x); row < rows; row += kBlock) sum += losses[row];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss += double(state->loss_scale) * sum;
}

// The sum over rows of dlogits, from column `first` on. Rows end with zeros, so that vectors are always whole.
template <class T>
struct BiasTerm {
  static constexpr int kSums = 1, kInFlight = 16 / sizeof(T);
  using Loaded = Packed<T>;
  const T* dlogits;
  int stride;

  __device__ Loaded load(int64_t row, int column) const { return cuda::load<true>(dlogits + row * stride, column, stride); }
  __device__ void add(const Loaded& loaded, int64_t, int, Eight* sums) const { sums[0] += unpack(loaded); }
};

template <class T>
void add_bias_gradient(const T* dlogits, int64_t rows, int64_t stride, const Tensor& db, float* partials, cudaStream_t stream) {
  constexpr int64_t kMost = int64_t{kMaxSumGroups} * kSumColumns;
  for (int64_t first = 0; first < db.cols; first += kMost) {
    launch_column_sums(BiasTerm<T>{dlogits + first, int(stride)}, rows, std::min(kMost, db.cols - first), partials,
                       {{db.f32() + first}}, stream);
  }
}

// What a block may have of shared memory beside what the kernels declare.
size_t shared_bytes_for_rows() {
  constexpr size_t kDeclared = 1024;
  int device = 0, bytes = 0;
  SNUG_CUDA(cudaGetDevice(&device));
  SNUG_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return size_t(bytes) - kDeclared;
}

template <class T, bool kGradient>
void launch_rows(const Arguments<T>& arguments, int64_t rows, cudaStream_t stream) {
  const size_t bytes = size_t(arguments.stride) * sizeof(T);
  const bool staged = kGradient && bytes <= shared_bytes_for_rows();
  const auto kernel = staged ? vocabulary_loss_kernel<T, kGradient, kGradient> : vocabulary_loss_kernel<T, kGradient, false>;
  if (staged) {
    SNUG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
    SNUG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  }
  kernel<<<unsigned(rows), kBlock, staged ? bytes : 0, stream>>>(arguments);
  SNUG_CUDA_LAUNCHED("vocabulary_loss");
}

struct Gradients {
  Tensor dx, dw, db;  // each optional
};

template <class T, bool kGradient>
void launch_chunks(const Launch& call, int64_t chunk, int64_t vocabulary, const Gradients& gradients) {
  const Tensor &x = call.in[0], &w = call.in[1], &loss = call.out[0];
  const Tensor b = call.in.size() > 2 ? call.in[2] : Tensor();
  SNUG_CHECK(x.cols == w.cols && x.dtype == w.dtype && loss.dtype == DType::kF64);
  const VocabularyLossWorkspace layout(std::min(chunk, x.rows), w.rows, sizeof(T), bool(gradients.db));
  SNUG_CHECK(call.workspace.size() >= layout.bytes);
  std::byte* const base = call.workspace.data();
  T* const logits = reinterpret_cast<T*>(base + layout.logits);
  double* const losses = reinterpret_cast<double*>(base + layout.losses);
  const std::span<std::byte> scratch = {base + layout.products, kProductWorkspaceBytes};
  for (int64_t first = 0; first < x.rows; first += chunk) {
    const int64_t rows = std::min(chunk, x.rows - first);
    const T* const x_chunk = data_of<T>(x) + first * x.cols;
    const auto run = [&](ProductKind kind, const ProductTensors& tensors) {
      call.products->run({.kind = kind,
                          .dtype = x.dtype,
                          .rows = rows,
                          .in = x.cols,
                          .out = w.rows,
                          .bias = kind == ProductKind::kForward && b,
                          .out_stride = layout.row_stride,
                          .overwrite = kind == ProductKind::kWeightGradient && call.only_pass && first == 0},
                         tensors, scratch, call.stream);
    };
    run(ProductKind::kForward, {.left = x_chunk, .right = w.data, .bias = b.data, .result = logits});
    launch_rows<T, kGradient>({.logits = logits,
                               .losses = losses,
                               .target_ids = call.batch->target_ids + first,
                               .first = first,
                               .stride = int(layout.row_stride),
                               .vocabulary = int(vocabulary > 0 ? vocabulary : w.rows),
                               .state = call.state},
                              rows, call.stream);
    add_losses_kernel<<<1, kBlock, 0, call.stream>>>(losses, int(rows), data_of<double>(loss), call.state);
    SNUG_CUDA_LAUNCHED("add_losses");
    if (gradients.db) {
      add_bias_gradient(logits, rows, layout.row_stride, gradients.db,
                        reinterpret_cast<float*>(base + layout.column_sums), call.stream);
    }
    if (gradients.dw) run(ProductKind::kWeightGradient, {.left = logits, .right = x_chunk, .result = gradients.dw.data});
    if (gradients.dx) {
      run(ProductKind::kInputGradient,
          {.left = logits, .right = w.data, .result = data_of<T>(gradients.dx) + first * x.cols});
    }
  }
}

}  // namespace

void launch(const VocabularyLoss& op, const Launch& call) {
  if (op.spec.with_gradient) return;
  with_type(call.in[0].dtype, [&]<class T>() { launch_chunks<T, false>(call, op.spec.chunk, op.spec.vocabulary, {}); });
}

void launch(const VocabularyLossGradient& op, const Launch& call) {
  with_type(call.in[0].dtype,
            [&]<class T>() { launch_chunks<T, true>(call, op.chunk, op.vocabulary, {call.out[1], call.out[2], call.out[3]}); });
}

}  // namespace snug::cuda

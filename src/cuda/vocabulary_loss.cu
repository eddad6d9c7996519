// Kernels of ops/vocabulary_loss.h. Per chunk of target rows: the product gives the logits, one
// kernel turns each row into its loss and, in place, its gradient (vocabulary_rows.cuh), and the
// other products take that.
#include "cuda/column_sums.cuh"
#include "cuda/kernels.h"
#include "cuda/products.h"
#include "cuda/row_losses.h"
#include "cuda/vocabulary_rows.cuh"
#include "ops/vocabulary_loss.h"

namespace snug::cuda {
namespace {

using namespace vocabulary_kernels;

// The sum over rows of dlogits, from column `first` on. Rows end with zeros, so that vectors are
// always whole.
template <class T>
struct BiasTerm {
  static constexpr int kSums = 1, kInFlight = 16 / sizeof(T);
  using Loaded = Packed<T>;
  const T* dlogits;
  int stride;

  __device__ Loaded load(int64_t row, int column) const {
    return cuda::load<true>(dlogits + row * stride, column, stride);
  }
  __device__ void add(const Loaded& loaded, int64_t, int, Eight* sums) const {
    sums[0] += unpack(loaded);
  }
};

template <class T>
void add_bias_gradient(const T* dlogits, int64_t rows, int64_t stride, const Tensor& db,
                       float* partials, cudaStream_t stream) {
  constexpr int64_t kMost = int64_t{kMaxSumGroups} * kSumColumns;
  for (int64_t first = 0; first < db.cols; first += kMost) {
    launch_column_sums(BiasTerm<T>{dlogits + first, int(stride)}, rows,
                       std::min(kMost, db.cols - first), partials, {{db.f32() + first}}, stream);
  }
}

struct Gradients {
  Tensor dx, dw, db;  // each optional
};

template <class T, bool kGradient>
void launch_chunks(const Launch& call, int64_t chunk, int64_t vocabulary,
                   const Gradients& gradients, const Distillation& distillation) {
  const Tensor &x = call.in[0], &w = call.in[1], &loss = call.out[0];
  const auto optional_input = [&](size_t i) { return call.in.size() > i ? call.in[i] : Tensor(); };
  const Tensor b = optional_input(2);
  const Tensor teacher_x = optional_input(3), teacher_w = optional_input(4),
               teacher_b = optional_input(5);
  SNUG_CHECK(x.cols == w.cols && x.dtype == w.dtype && loss.dtype == DType::kF64);
  SNUG_CHECK(!teacher_x ||
             (kGradient && teacher_x.cols == teacher_w.cols && teacher_w.rows == w.rows &&
              teacher_x.dtype == x.dtype && teacher_w.dtype == x.dtype));
  const VocabularyLossWorkspace layout({.chunk = std::min(chunk, x.rows),
                                        .vocabulary = w.rows,
                                        .element_bytes = sizeof(T),
                                        .bias_gradient = bool(gradients.db),
                                        .distils = bool(teacher_x)});
  SNUG_CHECK(call.workspace.size() >= layout.bytes);
  std::byte* const base = call.workspace.data();
  T* const logits = reinterpret_cast<T*>(base + layout.logits);
  T* const teacher = teacher_x ? reinterpret_cast<T*>(base + layout.teacher) : nullptr;
  double* const losses = reinterpret_cast<double*>(base + layout.losses);
  const std::span<std::byte> scratch = {base + layout.products, kProductWorkspaceBytes};
  for (int64_t first = 0; first < x.rows; first += chunk) {
    const int64_t rows = std::min(chunk, x.rows - first);
    const T* const x_chunk = data_of<T>(x) + first * x.cols;
    const auto run = [&](ProductKind kind, int64_t hidden, const ProductTensors& tensors) {
      call.products->run(
          {.kind = kind,
           .dtype = x.dtype,
           .rows = rows,
           .in = hidden,
           .out = w.rows,
           .bias = tensors.bias != nullptr,
           .out_stride = layout.row_stride,
           .overwrite = kind == ProductKind::kWeightGradient && call.only_pass && first == 0},
          tensors, scratch, call.stream);
    };
    run(ProductKind::kForward, x.cols,
        {.left = x_chunk, .right = w.data, .bias = b.data, .result = logits});
    if (teacher_x) {
      run(ProductKind::kForward, teacher_x.cols,
          {.left = data_of<T>(teacher_x) + first * teacher_x.cols,
           .right = teacher_w.data,
           .bias = teacher_b.data,
           .result = teacher});
    }
    launch_rows<T, kGradient>({.logits = logits,
                               .teacher = teacher,
                               .losses = losses,
                               .target_ids = call.batch->target_ids + first,
                               .first = first,
                               .stride = int(layout.row_stride),
                               .vocabulary = int(vocabulary > 0 ? vocabulary : w.rows),
                               .distillation = distillation,
                               .state = call.state},
                              rows, call.stream);
    add_row_losses(losses, rows, data_of<double>(loss), call);
    if (gradients.db) {
      add_bias_gradient(logits, rows, layout.row_stride, gradients.db,
                        reinterpret_cast<float*>(base + layout.column_sums), call.stream);
    }
    if (gradients.dw) {
      run(ProductKind::kWeightGradient, x.cols,
          {.left = logits, .right = x_chunk, .result = gradients.dw.data});
    }
    if (gradients.dx) {
      run(ProductKind::kInputGradient, x.cols,
          {.left = logits, .right = w.data, .result = data_of<T>(gradients.dx) + first * x.cols});
    }
  }
}

}  // namespace

void launch(const VocabularyLoss& op, const Launch& call) {
  if (op.spec.with_gradient) return;
  with_type(call.in[0].dtype, [&]<class T>() {
    launch_chunks<T, false>(call, op.spec.chunk, op.spec.vocabulary, {}, {});
  });
}

void launch(const VocabularyLossGradient& op, const Launch& call) {
  with_type(call.in[0].dtype, [&]<class T>() {
    launch_chunks<T, true>(call, op.chunk, op.vocabulary, {call.out[1], call.out[2], call.out[3]},
                           op.distillation);
  });
}

}  // namespace snug::cuda

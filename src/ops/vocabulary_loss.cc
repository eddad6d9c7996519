#include "ops/vocabulary_loss.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/vocabulary_loss.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "ops/columns-inl.h"
#include "ops/distillation.h"
#include "ops/math-inl.h"
#include "ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

constexpr size_t kStrip = 1024;  // sums of a row are taken in strips, which are added in fp64

// Adds the bias b, which may be null. Returns the largest logit, or NaN where there is one.
float AddBias(float* logits, const float* b, size_t vocabulary) {
  const FloatTag d;
  FloatVector highest = hn::Set(d, -std::numeric_limits<float>::infinity());
  bool defined = true;
  over_row(vocabulary, [&](size_t i, auto access) HWY_ATTR {
    FloatVector x = access.load(d, logits + i);
    if (b) {
      x = hn::Add(x, access.load(d, b + i));
      access.store(x, d, logits + i);
    }
    // Absent lanes are zero; their own first lane stands in for them.
    const FloatVector all = hn::IfThenElse(hn::Eq(access.present(d, hn::Set(d, 1.0f)), hn::Zero(d)),
                                           hn::Set(d, hn::GetLane(x)), x);
    defined = defined && hn::AllTrue(d, hn::Eq(all, all));
    highest = hn::Max(highest, all);
  });
  return defined ? hn::GetLane(hn::MaxOfLanes(d, highest))
                 : std::numeric_limits<float>::quiet_NaN();
}

// One row of logits (without the bias b, which may be null): returns -log p(target). With `scale`
// not zero the row becomes (p - onehot) * scale.
double VocabularyLossRow(float* logits, const float* b, size_t vocabulary, int32_t target,
                         float scale) {
  const FloatTag d;
  const float max = AddBias(logits, b, vocabulary);
  if (std::isnan(max)) return max;
  const double at_target = logits[target];
  double sum = 0.0;
  for (size_t strip = 0; strip < vocabulary; strip += kStrip) {
    FloatVector part = hn::Zero(d);
    over_row(std::min(kStrip, vocabulary - strip), [&](size_t i, auto access) HWY_ATTR {
      float* const at = logits + strip + i;
      const FloatVector e = vector_exp(hn::Sub(access.load(d, at), hn::Set(d, max)));
      part = hn::Add(part, access.present(d, e));
      if (scale != 0.0f) access.store(e, d, at);
    });
    sum += double(sum_of_lanes(part));
  }
  if (scale != 0.0f) {
    const FloatVector factor = hn::Set(d, float(double(scale) / sum));
    over_row(vocabulary, [&](size_t i, auto access) HWY_ATTR {
      access.store(hn::Mul(access.load(d, logits + i), factor), d, logits + i);
    });
    logits[target] -= scale;
  }
  return std::log(sum) + (double(max) - at_target);  // the difference first: max may be huge
}

// The same with a teacher, by the formulas of ops/distillation.h; the student's row becomes its
// gradient.
double DistilledLossRow(const DistilledRow& row, const Distillation& distillation, float scale) {
  const FloatTag d;
  const float max = AddBias(row.logits, row.bias, row.vocabulary);
  const float teacher_max = AddBias(row.teacher, row.teacher_bias, row.vocabulary);
  if (std::isnan(max) || std::isnan(teacher_max)) return std::numeric_limits<double>::quiet_NaN();
  const double at_target = row.logits[row.target], temperature = distillation.temperature,
               alpha = distillation.alpha;
  const FloatVector inverse = hn::Set(d, 1.0f / distillation.temperature);
  // Sums of exponentials, the last two of logits / temperature.
  double hard = 0.0, soft = 0.0, taught = 0.0;
  for (size_t strip = 0; strip < row.vocabulary; strip += kStrip) {
    FloatVector hard_part = hn::Zero(d), soft_part = hn::Zero(d), taught_part = hn::Zero(d);
    over_row(std::min(kStrip, row.vocabulary - strip), [&](size_t i, auto access) HWY_ATTR {
      const FloatVector s = hn::Sub(access.load(d, row.logits + strip + i), hn::Set(d, max));
      const FloatVector t =
          hn::Sub(access.load(d, row.teacher + strip + i), hn::Set(d, teacher_max));
      hard_part = hn::Add(hard_part, access.present(d, vector_exp(s)));
      soft_part = hn::Add(soft_part, access.present(d, vector_exp(hn::Mul(s, inverse))));
      taught_part = hn::Add(taught_part, access.present(d, vector_exp(hn::Mul(t, inverse))));
    });
    hard += double(sum_of_lanes(hard_part));
    soft += double(sum_of_lanes(soft_part));
    taught += double(sum_of_lanes(taught_part));
  }
  const double share = double(scale) * alpha * temperature;
  const FloatVector hard_factor = hn::Set(d, float(double(scale) * (1.0 - alpha) / hard));
  const FloatVector soft_factor = hn::Set(d, float(share / soft)),
                    taught_factor = hn::Set(d, float(share / taught));
  const FloatVector log_ratio = hn::Set(d, float(std::log(soft) - std::log(taught)));
  double divergence = 0.0;  // times `taught`
  for (size_t strip = 0; strip < row.vocabulary; strip += kStrip) {
    FloatVector part = hn::Zero(d);
    over_row(std::min(kStrip, row.vocabulary - strip), [&](size_t i, auto access) HWY_ATTR {
      float* const at = row.logits + strip + i;
      const FloatVector s = hn::Sub(access.load(d, at), hn::Set(d, max));
      const FloatVector t =
          hn::Sub(access.load(d, row.teacher + strip + i), hn::Set(d, teacher_max));
      const FloatVector taught_term = vector_exp(hn::Mul(t, inverse));
      part = hn::Add(
          part,
          access.present(d, hn::Mul(taught_term, hn::MulAdd(hn::Sub(t, s), inverse, log_ratio))));
      const FloatVector soft_term = vector_exp(hn::Mul(s, inverse));
      const FloatVector difference =
          hn::NegMulAdd(taught_term, taught_factor, hn::Mul(soft_term, soft_factor));
      access.store(hn::MulAdd(vector_exp(s), hard_factor, difference), d, at);
    });
    divergence += double(sum_of_lanes(part));
  }
  row.logits[row.target] -= float(double(scale) * (1.0 - alpha));
  const double cross_entropy = std::log(hard) + (double(max) - at_target);
  return (1.0 - alpha) * cross_entropy + alpha * temperature * temperature * divergence / taught;
}

// db[begin, end) += sums over rows of dlogits.
void VocabularyBiasGradient(const float* dlogits, int64_t rows, size_t stride, size_t begin,
                            size_t end, float* db) {
  const FloatTag d;
  add_column_sums(rows, begin, end, db, nullptr,
                  [&](int64_t row, size_t i, auto access, FloatVector& sum, FloatVector&)
                      HWY_ATTR { sum = access.load(d, dlogits + size_t(row) * stride + i); });
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/error.h"
#include "ops/cuda_workspace.h"
#include "ops/parallel.h"
#include "ops/products.h"

namespace snug {
namespace {

HWY_EXPORT(VocabularyLossRow);
HWY_EXPORT(DistilledLossRow);
HWY_EXPORT(VocabularyBiasGradient);

size_t workspace(const Sizing& sizing, int64_t chunk, bool bias_gradient) {
  const int64_t rows = std::min(chunk, sizing.dims.targets), vocabulary = sizing.in[1].rows;
  const bool distils = sizing.in.size() > 3 && sizing.in[3].cols > 0;
  if (sizing.device.kind == DeviceKind::kCuda) {
    return VocabularyLossWorkspace({.chunk = rows,
                                    .vocabulary = vocabulary,
                                    .element_bytes = dtype_bytes(sizing.in[0].dtype),
                                    .bias_gradient = bias_gradient,
                                    .distils = distils})
        .bytes;
  }
  return size_t(rows) * (size_t(vocabulary) * sizeof(float) * (distils ? 2 : 1) + sizeof(double));
}

struct Gradients {
  Tensor dx, dw, db;  // each optional
};

void run_chunks(const Call& call, int64_t chunk, int64_t vocabulary, const Gradients& gradients,
                bool with_gradient, const Distillation& distillation) {
  const Tensor &x = call.in[0], &w = call.in[1], &loss = call.out[0];
  const float* const b = call.in.size() > 2 ? call.in[2].f32() : nullptr;
  const int64_t stride = w.rows, most = std::min(chunk, x.rows);
  if (vocabulary == 0) vocabulary = stride;
  SNUG_CHECK(x.cols == w.cols && vocabulary <= stride && loss.dtype == DType::kF64);
  const auto optional_input = [&](size_t i) { return call.in.size() > i ? call.in[i] : Tensor(); };
  const Tensor teacher_x = optional_input(3), teacher_w = optional_input(4),
               teacher_b = optional_input(5);
  SNUG_CHECK(!teacher_x ||
             (with_gradient && teacher_x.cols == teacher_w.cols && teacher_w.rows == stride));
  auto* const losses = reinterpret_cast<double*>(call.workspace.data());
  auto* const logits = reinterpret_cast<float*>(losses + most);
  float* const teacher_logits = logits + most * stride;
  const float scale = with_gradient ? call.step->loss_scale : 0.0f;
  double total = 0.0;
  for (int64_t first = 0; first < x.rows; first += chunk) {
    const int64_t rows = std::min(chunk, x.rows - first);
    const ProductDims dims = {rows, x.cols, stride};
    const float* const x_chunk = x.f32() + first * x.cols;
    product_nt(dims, x_chunk, w.f32(), logits, Write::kOverwrite);
    if (teacher_x) {
      product_nt({rows, teacher_x.cols, stride}, teacher_x.f32() + first * teacher_x.cols,
                 teacher_w.f32(), teacher_logits, Write::kOverwrite);
    }
    over_ranges(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int32_t target = call.batch->target_ids[first + row];
        SNUG_CHECK(target >= 0 && target < vocabulary);
        losses[row] = teacher_x ? HWY_DYNAMIC_DISPATCH(DistilledLossRow)(
                                      {logits + row * stride, b, teacher_logits + row * stride,
                                       teacher_b.f32(), size_t(vocabulary), target},
                                      distillation, scale)
                                : HWY_DYNAMIC_DISPATCH(VocabularyLossRow)(
                                      logits + row * stride, b, size_t(vocabulary), target, scale);
        std::fill(logits + row * stride + vocabulary, logits + (row + 1) * stride, 0.0f);
      }
    });
    for (int64_t row = 0; row < rows; ++row) total += losses[row];
    if (gradients.dx) {
      product_nn(dims, logits, w.f32(), gradients.dx.f32() + first * x.cols, Write::kOverwrite);
    }
    if (gradients.dw) product_tn(dims, logits, x_chunk, gradients.dw.f32());
    if (gradients.db) {
      over_ranges(vocabulary, kColumnGrain, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(VocabularyBiasGradient)
        (logits, rows, size_t(stride), size_t(begin), size_t(end), gradients.db.f32());
      });
    }
  }
  *static_cast<double*>(loss.data) += double(call.step->loss_scale) * total;
}

}  // namespace

size_t VocabularyLossGradient::workspace_bytes(const Sizing& sizing) const {
  return workspace(sizing, chunk, sizing.out[3].cols > 0);
}

void VocabularyLossGradient::run(const Call& call) const {
  run_chunks(call, chunk, vocabulary, {call.out[1], call.out[2], call.out[3]},
             /*with_gradient=*/true, distillation);
}

size_t VocabularyLoss::workspace_bytes(const Sizing& sizing) const {
  return spec.with_gradient ? 0 : workspace(sizing, spec.chunk, false);
}

void VocabularyLoss::run(const Call& call) const {
  if (!spec.with_gradient) {
    run_chunks(call, spec.chunk, spec.vocabulary, {}, /*with_gradient=*/false, spec.distillation);
  }
}

void VocabularyLoss::backward(const Node& node, GradientWriter& writer) const {
  const ValueId x = node.inputs[0], w = node.inputs[1], b = node.inputs[2];
  const auto dx = writer.gradient_for(x), dw = writer.gradient_for(w);
  const auto db = b == kNoValue ? GradientWriter::Target() : writer.gradient_for(b);
  SNUG_CHECK(!dx.accumulate);  // the head is the only one to read its input
  std::vector<ValueId> inputs;
  for (const ValueId input : node.inputs) {
    inputs.push_back(input == kNoValue ? input : writer.saved(input));
  }
  writer.emit(
      std::make_shared<VocabularyLossGradient>(spec.chunk, spec.vocabulary, spec.distillation),
      std::move(inputs), {node.outputs[0], dx.value, dw.value, db.value});
}

OpPtr vocabulary_loss(const VocabularyLossSpec& spec) {
  return std::make_shared<VocabularyLoss>(spec);
}

}  // namespace snug
#endif  // HWY_ONCE

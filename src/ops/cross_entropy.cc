#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace snug {
namespace {

// One row: returns -log p(label) and writes (p - onehot) * scale to d (optional). Exponentials and
// their sum are fp64: rows are few, and the loss of a confident row lives in its last digits.
double cross_entropy_row(const float* logits, int64_t classes, int32_t label, float scale,
                         float* d) {
  const double max = *std::max_element(logits, logits + classes);
  double sum = 0.0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(logits[c] - max);
  if (d) {
    for (int64_t c = 0; c < classes; ++c) {
      d[c] = float(scale * (std::exp(logits[c] - max) / sum - (c == label ? 1.0 : 0.0)));
    }
  }
  return std::log(sum) + (max - logits[label]);  // the difference first: max may be huge
}

// A softmax of logits / temperature: what has to be subtracted and divided by.
struct Softmax {
  const float* logits;
  double temperature, max, sum;

  Softmax(const float* from, int64_t classes, double temperature)
      : logits(from), temperature(temperature), max(*std::max_element(from, from + classes)), sum(0.0) {
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(scaled(c));
  }
  double scaled(int64_t c) const { return (logits[c] - max) / temperature; }
  double p(int64_t c) const { return std::exp(scaled(c)) / sum; }
  double log_p(int64_t c) const { return scaled(c) - std::log(sum); }
};

// The same with a teacher, by the formulas of ops/distillation.h.
double distilled_row(const float* logits, const float* teacher, const CrossEntropySpec& spec, int32_t label, float scale,
                     float* d) {
  const double temperature = spec.distillation.temperature, alpha = spec.distillation.alpha;
  const Softmax hard(logits, spec.classes, 1.0), soft(logits, spec.classes, temperature);
  const Softmax taught(teacher, spec.classes, temperature);
  double divergence = 0.0;
  for (int64_t c = 0; c < spec.classes; ++c) divergence += taught.p(c) * (taught.log_p(c) - soft.log_p(c));
  if (d) {
    for (int64_t c = 0; c < spec.classes; ++c) {
      d[c] = float(scale * ((1.0 - alpha) * (hard.p(c) - (c == label ? 1.0 : 0.0)) +
                            alpha * temperature * (soft.p(c) - taught.p(c))));
    }
  }
  return (1.0 - alpha) * -hard.log_p(label) + alpha * temperature * temperature * divergence;
}

}  // namespace

void CrossEntropy::run(const Call& call) const {
  const Tensor &logits = call.in[0], &loss = call.out[0];
  SNUG_CHECK(logits.cols == spec.classes && (!loss || loss.dtype == DType::kF64));
  float* const dlogits = call.out.size() > 1 ? call.out[1].f32() : nullptr;
  const Tensor teacher = call.in.size() > 1 ? call.in[1] : Tensor();
  SNUG_CHECK(!teacher || (teacher.rows == logits.rows && teacher.cols == logits.cols));
  double total = 0.0;
  for (int64_t s = 0; s < logits.rows; ++s) {
    const int32_t label = call.batch->labels[s];
    float* const d = dlogits ? dlogits + s * spec.classes : nullptr;
    if (label < 0) {
      if (d) std::fill_n(d, spec.classes, 0.0f);
      continue;
    }
    SNUG_CHECK(label < spec.classes);
    const float* const row = logits.f32() + s * spec.classes;
    total += teacher ? distilled_row(row, teacher.f32() + s * spec.classes, spec, label, call.step->loss_scale, d)
                     : cross_entropy_row(row, spec.classes, label, call.step->loss_scale, d);
  }
  if (loss) *static_cast<double*>(loss.data) += double(call.step->loss_scale) * total;
}

OpPtr cross_entropy(const CrossEntropySpec& spec) { return std::make_shared<CrossEntropy>(spec); }

}  // namespace snug

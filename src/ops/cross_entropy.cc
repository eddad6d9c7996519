#include "ops/cross_entropy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "ops/cuda_workspace.h"

namespace snug {
namespace {

// A softmax of logits / temperature: what has to be subtracted and divided by. Exponentials and
// their sum are fp64: rows are few, and the loss of a confident row lives in its last digits.
struct Softmax {
  const float* logits;
  double temperature, max, sum, log_sum;

  Softmax(const float* from, int64_t classes, double temperature)
      : logits(from),
        temperature(temperature),
        max(*std::max_element(from, from + classes)),
        sum(0.0) {
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(scaled(c));
    log_sum = std::log(sum);
  }
  double scaled(int64_t c) const { return (logits[c] - max) / temperature; }
  double p(int64_t c) const { return std::exp(scaled(c)) / sum; }
  // The difference first: max may be huge.
  double log_p(int64_t c) const { return scaled(c) - log_sum; }
};

// What a row is compared with.
struct Target {
  int32_t label;
  double weight;         // of the row
  const float* teacher;  // or null
};

int64_t weight_place(const CrossEntropySpec& spec, const Batch& batch, int64_t row, int32_t label) {
  if (spec.rows != Rows::kTargets) return row * spec.label_words() + 1;
  return batch.row_of[batch.target_rows[row]] * spec.label_words() + 1 + label;
}

// One row: returns its loss and writes the gradient, times scale, to d (optional).
double row_loss(const float* logits, const CrossEntropySpec& spec, const Target& target,
                float scale, float* d) {
  const double smoothing = spec.smoothing, classes = double(spec.classes);
  const double temperature = spec.distillation.temperature,
               alpha = target.teacher ? spec.distillation.alpha : 0.0;
  const double hard_share = target.weight * (1.0 - alpha), soft_share = target.weight * alpha;
  const Softmax hard(logits, spec.classes, 1.0);
  std::optional<Softmax> soft, taught;
  if (target.teacher) {
    soft.emplace(logits, spec.classes, temperature);
    taught.emplace(target.teacher, spec.classes, temperature);
  }
  double loss = hard_share * (1.0 - smoothing) * -hard.log_p(target.label);
  for (int64_t c = 0; c < spec.classes; ++c) {
    if (smoothing > 0.0) loss += hard_share * smoothing / classes * -hard.log_p(c);
    if (soft) {
      loss += soft_share * temperature * temperature * taught->p(c) *
              (taught->log_p(c) - soft->log_p(c));
    }
    if (!d) continue;
    const double wanted = (c == target.label ? 1.0 - smoothing : 0.0) + smoothing / classes;
    double gradient = hard_share * (hard.p(c) - wanted);
    if (soft) gradient += soft_share * temperature * (soft->p(c) - taught->p(c));
    d[c] = float(scale * gradient);
  }
  return loss;
}

}  // namespace

size_t CrossEntropy::workspace_bytes(const Sizing& sizing) const {
  return row_losses_bytes(sizing.device, sizing.in[0].row_count(sizing.dims));
}

void CrossEntropy::run(const Call& call) const {
  const Tensor &logits = call.in[0], &loss = call.out[0];
  SNUG_CHECK(logits.cols == spec.classes && (!loss || loss.dtype == DType::kF64));
  float* const dlogits = call.out.size() > 1 ? call.out[1].f32() : nullptr;
  const Tensor teacher = call.in.size() > 1 ? call.in[1] : Tensor();
  SNUG_CHECK(!teacher || (teacher.rows == logits.rows && teacher.cols == logits.cols));
  const bool of_targets = spec.rows == Rows::kTargets;
  const Batch& batch = *call.batch;
  SNUG_CHECK((of_targets && !spec.weighted) || batch.dims.label_words == spec.label_words());
  double total = 0.0;
  for (int64_t row = 0; row < logits.rows; ++row) {
    const int32_t label =
        of_targets ? batch.target_ids[row] : batch.labels[row * spec.label_words()];
    float* const d = dlogits ? dlogits + row * spec.classes : nullptr;
    if (label < 0) {
      if (d) std::fill_n(d, spec.classes, 0.0f);
      continue;
    }
    SNUG_CHECK(label < spec.classes);
    const Target target{
        .label = label,
        .weight = spec.weighted
                      ? std::bit_cast<float>(batch.labels[weight_place(spec, batch, row, label)])
                      : 1.0,
        .teacher = teacher ? teacher.f32() + row * spec.classes : nullptr};
    total += row_loss(logits.f32() + row * spec.classes, spec, target, call.step->loss_scale, d);
  }
  if (loss) *static_cast<double*>(loss.data) += double(call.step->loss_scale) * total;
}

OpPtr cross_entropy(const CrossEntropySpec& spec) { return std::make_shared<CrossEntropy>(spec); }

}  // namespace snug

#include "optim/optimizer.h"

#include "core/error.h"
#include "core/memory.h"
#include "optim/adafactor.h"
#include "optim/adamw.h"
#include "optim/adamw_8bit.h"
#include "optim/adamw_bf16.h"
#include "optim/sgd.h"

namespace snug {
namespace {

// Below this many elements eight bits save nothing worth their error.
constexpr int64_t kLeastEightBit = 4096;

void update_factored(const Parameter& parameter, std::span<float> weights,
                     std::span<const float> gradient, std::byte* state, const OptimizerStep& step) {
  for (size_t i = 0; i < adafactor_part_count(parameter); ++i) {
    const AdafactorPart part = adafactor_part(parameter, i);
    const auto w = weights.subspan(size_t(part.first), size_t(part.size()));
    const auto g = gradient.subspan(size_t(part.first), size_t(part.size()));
    auto* const moments = reinterpret_cast<float*>(state + part.state);
    const std::span<float> columns(moments + part.rows, size_t(part.cols));
    if (part.rows == 0) {
      adafactor_vector(w, g, columns, step);
    } else {
      adafactor_matrix(w, g, {moments, size_t(part.rows)}, columns, step);
    }
  }
}

}  // namespace

Optimizer parse_optimizer(std::string_view name, double momentum) {
  if (name == "adamw" || name == "adamw_torch" || name == "adamw_hf") return Optimizer::kAdamW;
  if (name == "adamw_8bit" || name == "adamw_bnb_8bit") return Optimizer::kAdamW8Bit;
  if (name == "adamw_bf16") return Optimizer::kAdamWBf16;
  if (name == "adafactor") return Optimizer::kAdafactor;
  if (name == "sgd") return momentum > 0.0 ? Optimizer::kSgdMomentum : Optimizer::kSgd;
  fail(ErrorKind::kUsage,
       "unknown optimizer \"{}\"; there are adamw, adamw_8bit, adamw_bf16, adafactor and sgd",
       name);
}

std::string_view optimizer_name(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kAdamW:
      return "adamw";
    case Optimizer::kAdamW8Bit:
      return "adamw_8bit";
    case Optimizer::kAdamWBf16:
      return "adamw_bf16";
    case Optimizer::kAdafactor:
      return "adafactor";
    case Optimizer::kSgd:
    case Optimizer::kSgdMomentum:
      return "sgd";
  }
  return "";
}

StateFormat state_format(Optimizer optimizer, const Parameter& parameter) {
  switch (optimizer) {
    case Optimizer::kAdamW:
      return StateFormat::kMoments;
    case Optimizer::kAdamW8Bit:
      return parameter.is_matrix() && parameter.size() >= kLeastEightBit ? StateFormat::kEightBit
                                                                         : StateFormat::kMoments;
    case Optimizer::kAdamWBf16:
      return keeps_bfloat16(optimizer, parameter) ? StateFormat::kHalfMoments
                                                  : StateFormat::kMoments;
    case Optimizer::kAdafactor:
      return StateFormat::kFactored;
    case Optimizer::kSgd:
      return StateFormat::kNone;
    case Optimizer::kSgdMomentum:
      return StateFormat::kMomentum;
  }
  return StateFormat::kNone;
}

size_t moment_bytes(const Parameter& parameter) {
  return align_up(size_t(parameter.occupied()) * sizeof(float));
}

size_t state_bytes(Optimizer optimizer, const Parameter& parameter) {
  switch (state_format(optimizer, parameter)) {
    case StateFormat::kNone:
      return 0;
    case StateFormat::kMoments:
      return 2 * moment_bytes(parameter);
    case StateFormat::kEightBit:
      return eight_bit_layout(parameter.size()).bytes;
    case StateFormat::kHalfMoments:
      return half_moment_layout(parameter.size()).bytes;
    case StateFormat::kFactored:
      return adafactor_part(parameter, adafactor_part_count(parameter)).state;
    case StateFormat::kMomentum:
      return moment_bytes(parameter);
  }
  return 0;
}

bool keeps_bfloat16(Optimizer optimizer, const Parameter& parameter) {
  return optimizer == Optimizer::kAdamWBf16 && parameter.is_matrix();
}

size_t adafactor_part_count(const Parameter& parameter) {
  return parameter.parts.empty() ? 1 : parameter.parts.size();
}

AdafactorPart adafactor_part(const Parameter& parameter, size_t index) {
  AdafactorPart part;
  for (size_t i = 0; i <= index; ++i) {
    part.first += part.size();
    part.state = align_up(part.state + size_t(part.rows + part.cols) * sizeof(float));
    if (i == adafactor_part_count(parameter)) break;  // behind the last: where the state ends
    const int64_t whole = parameter.is_vector ? parameter.cols : parameter.rows;
    const int64_t own = parameter.parts.empty() ? whole : parameter.parts[i].rows;
    part.rows = parameter.is_vector ? 0 : own;
    part.cols = parameter.is_vector ? own : parameter.cols;
  }
  return part;
}

void update_parameter(Optimizer optimizer, const Parameter& parameter, uint64_t index,
                      void* weights, std::span<const float> gradient, std::byte* state,
                      const OptimizerStep& given) {
  OptimizerStep step = given;
  if (!parameter.decays) step.weight_decay = 0.0;
  const auto size = size_t(parameter.size());
  SNUG_CHECK(gradient.size() == size);
  const std::span<float> w(static_cast<float*>(weights), size);
  const auto floats = [&](size_t offset) {
    return std::span(reinterpret_cast<float*>(state + offset), size);
  };
  switch (state_format(optimizer, parameter)) {
    case StateFormat::kNone:
      return sgd(w, gradient, {}, step);
    case StateFormat::kMoments:
      return adamw(w, gradient, floats(0), floats(moment_bytes(parameter)), step);
    case StateFormat::kEightBit:
      return adamw_8bit(w, gradient, state, step, index);
    case StateFormat::kHalfMoments:
      return adamw_bf16({static_cast<uint16_t*>(weights), size}, gradient, state, step, index);
    case StateFormat::kFactored:
      return update_factored(parameter, w, gradient, state, step);
    case StateFormat::kMomentum:
      return sgd(w, gradient, floats(0), step);
  }
}

}  // namespace snug

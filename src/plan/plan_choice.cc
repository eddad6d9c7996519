#include "plan/plan_choice.h"

#include <algorithm>
#include <array>

namespace snug {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"none", "state", "gradients"};  // by Offload
constexpr std::string_view kActivations = "activations";

}  // namespace

std::string offload_text(const PlanChoice& choice) {
  std::string text(kNames[size_t(choice.offload)]);
  if (!choice.activations_outside) return text;
  return choice.offload == Offload::kNone ? std::string(kActivations)
                                          : text + "," + std::string(kActivations);
}

bool parse_offload(std::string_view text, PlanChoice& choice) {
  choice.offload = Offload::kNone;
  choice.activations_outside = false;
  if (text == kNames[0]) return true;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    if (name == kActivations) {
      choice.activations_outside = true;
    } else {
      const auto found = std::find(kNames.begin() + 1, kNames.end(), name);
      if (found == kNames.end()) return false;
      choice.offload = std::max(choice.offload, Offload(found - kNames.begin()));
    }
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace snug

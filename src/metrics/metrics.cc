#include "metrics/metrics.h"

namespace snug {

bool greater_is_better(std::string_view metric) {
  return metric != "loss" && metric != "perplexity" && metric != "mse" && metric != "mae";
}

}  // namespace snug

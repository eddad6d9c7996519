// What all metrics have in common. Examples stream through add(), which each kind has in its own
// form; nothing of an example is kept, but where a definition needs all scores in order: those are
// sorted in bounded memory (external_sort.h). Every 0/0 is 0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "snug/evaluation.h"

namespace snug {

using MetricValues = std::map<std::string, double>;

class Metrics {
 public:
  virtual ~Metrics() = default;
  virtual void reset() = 0;
  virtual uint64_t examples() const = 0;
  virtual MetricValues all() = 0;  // by the names that scikit-learn's and Hugging Face's users know
  // Names that all() has only where the examples allow it.
  virtual std::vector<std::string> sometimes() const { return {}; }
  virtual ScoreReport report() const { return {}; }
};

bool greater_is_better(std::string_view metric);  // false for losses and errors

}  // namespace snug

#include "graph/recompute.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace snug {

std::string to_string(const Parts& parts) {
  if (parts.none()) return "none";
  if (parts == Parts::all()) return "all";
  std::vector<std::string_view> names;
  for (const PartName& known : kPartNames) {
    if (parts.has(known.part)) names.push_back(known.name);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

bool parse_parts(std::string_view text, Parts& parts) {
  parts = {};
  if (text == "none") return true;
  if (text == "all") return parts = Parts::all(), true;
  while (true) {
    const size_t comma = text.find(',');
    const auto known = std::ranges::find(kPartNames, text.substr(0, comma), &PartName::name);
    if (known == kPartNames.end()) return false;
    parts.add(known->part);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

std::string describe(const Recomputation& recomputation, int layers) {
  const auto count = [&](const auto& counts) {
    int64_t total = 0;
    for (size_t i = 1; i < recomputation.size() && i <= size_t(layers); ++i) {
      total += counts(recomputation[i]);
    }
    return total;
  };
  const int64_t whole = count([](const Parts& parts) { return parts == Parts::all(); });
  if (whole == layers && layers > 0) return "all layers";
  std::vector<std::string> named;
  if (whole > 0) named.push_back(fmt::format("all of {}", whole));
  for (const PartName& known : kPartNames) {
    const int64_t times =
        count([&](const Parts& parts) { return parts != Parts::all() && parts.has(known.part); });
    if (times > 0) named.push_back(fmt::format("{} in {}", known.name, times));
  }
  const bool embeddings = !recomputation.empty() && !recomputation[0].none();
  if (named.empty()) return embeddings ? "embeddings" : "none";
  return fmt::format("{} of {} layers", fmt::join(named, ", "), layers);
}

}  // namespace snug

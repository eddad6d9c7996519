#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "model/tuning.h"

namespace snug {
namespace {

using Rule = std::function<bool(const Parameter&)>;

// `*` stands for any text.
bool matches(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  text.remove_prefix(star);
  for (size_t skip = 0; skip <= text.size(); ++skip) {
    if (matches(pattern, text.substr(skip))) return true;
  }
  return false;
}

struct LayerRange {
  int first = 0, last = 0;
};

// layers.3, encoder.0-5, h.2-2.
std::optional<LayerRange> layer_range(std::string_view entry) {
  for (const std::string_view word :
       {"layers.", "encoder.layer.", "encoder.", "transformer.layer.", "h."}) {
    if (!entry.starts_with(word)) continue;
    const std::string_view numbers = entry.substr(word.size());
    LayerRange range;
    const char* const end = numbers.data() + numbers.size();
    auto parsed = std::from_chars(numbers.data(), end, range.first);
    if (parsed.ec != std::errc()) continue;
    range.last = range.first;
    if (parsed.ptr != end) {
      if (*parsed.ptr != '-') continue;
      parsed = std::from_chars(parsed.ptr + 1, end, range.last);
      if (parsed.ec != std::errc() || parsed.ptr != end) continue;
    }
    return range;
  }
  return std::nullopt;
}

// A pattern holds for a tensor, for the module it belongs to, and for modules around that.
bool names(const std::string& pattern, const Parameter& parameter) {
  return std::ranges::any_of(parameter.parts, [&](const ParameterPart& part) {
    const std::string_view name = part.name;
    const auto holds = [&](std::string_view text) {
      for (size_t end = text.size(); end != std::string_view::npos;
           end = end == 0 ? std::string_view::npos : text.rfind('.', end - 1)) {
        if (matches(pattern, text.substr(0, end))) return true;
      }
      return false;
    };
    for (size_t begin = 0; begin != std::string_view::npos;) {
      if (holds(name.substr(begin))) return true;
      begin = name.find('.', begin);
      if (begin != std::string_view::npos) ++begin;
    }
    return false;
  });
}

Rule rule_of(const std::string& entry) {
  if (entry == "embeddings") {
    return [](const Parameter& p) { return p.stage == Stage::kEmbeddings; };
  }
  if (entry == "all-but-head") return [](const Parameter& p) { return !p.is_head; };
  if (const auto range = layer_range(entry)) {
    return [range](const Parameter& p) {
      return p.stage == Stage::kLayer && p.layer >= range->first && p.layer <= range->last;
    };
  }
  return [entry](const Parameter& p) { return names(entry, p); };
}

}  // namespace

void freeze(ParameterTable& parameters, const std::vector<std::string>& entries) {
  int layers = 0;
  for (const Parameter& p : parameters) layers = std::max(layers, p.layer + 1);
  for (const std::string& entry : entries) {
    const Rule frozen = rule_of(entry);
    const auto range = layer_range(entry);
    bool any = false;
    for (Parameter& p : parameters) {
      if (!frozen(p)) continue;
      any = true;
      p.trained = false;
    }
    if (any && (!range || range->last < layers)) continue;
    throw Error(ErrorKind::kUsage,
                range ? fmt::format("--freeze {}: the model has layers 0 to {}", entry, layers - 1)
                      : fmt::format("--freeze {}: no parameter has that name", entry),
                fmt::format("embeddings, layers.0-{}, all-but-head, or a name such as {}",
                            layers - 1, parameters.back().parts[0].name));
  }
  if (entries.empty()) return;
  const auto trained_adapter = [](const Parameter& p) { return p.is_adapter && p.trained; };
  if (std::ranges::any_of(parameters, &Parameter::is_adapter) &&
      std::ranges::none_of(parameters, trained_adapter)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("--freeze {}: leaves none of the adapters that --lora-rank makes to train",
                    fmt::join(entries, ",")),
        "--lora-rank freezes everything but the adapters and the head by itself: leave --freeze "
        "out, or --lora-rank");
  }
  if (std::ranges::none_of(parameters, &Parameter::trained)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("--freeze {}: nothing is left to train", fmt::join(entries, ",")),
                "leave out a part that is to learn");
  }
}

}  // namespace snug

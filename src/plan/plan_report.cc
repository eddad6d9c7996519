// A plan in words and as JSON: what `snug plan` prints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/json.h"
#include "core/progress.h"
#include "plan/plan_choice.h"
#include "plan/sweep_report.h"
#include "snug/snug.h"

namespace snug {

namespace {

OrderedJson or_null(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson json_of(const Alternative& a) {
  return {{"technique", a.technique}, {"saves_bytes", a.saves_bytes}, {"peak_bytes", a.peak_bytes}};
}

OrderedJson json_of(const SweepPoint& point) {
  return {{"budget_bytes", point.budget_bytes},
          {"peak_bytes", point.peak_bytes},
          {"micro_batch_tokens", point.micro_batch_tokens},
          {"micro_batches", point.micro_batches},
          {"recompute", point.recompute},
          {"head_chunk_tokens", point.head_chunk_tokens},
          {"converts_weights", point.converts_weights},
          {"offload", point.offload},
          {"relative_time", point.relative_time},
          {"predicted_tokens_per_second", or_null(point.tokens_per_second)},
          {"chosen", point.chosen}};
}

std::string offloaded_things(const std::string& offload) {
  PlanChoice choice;
  parse_offload(offload, choice);
  std::vector<std::string_view> things;
  if (choice.offload >= Offload::kState) things.push_back("optimizer state");
  if (choice.offload >= Offload::kGradients) things.push_back("gradients");
  if (choice.activations_outside) things.push_back("what recomputed layers keep");
  return fmt::format("{}", fmt::join(things, ", "));
}

std::string text_of(const Alternative& a) {
  return fmt::format("{} would need {} (saves {})", a.technique, format_bytes(a.peak_bytes),
                     format_bytes(a.saves_bytes));
}

}  // namespace

std::string PlanSummary::to_json() const {
  OrderedJson json = {
      {"fits", fits},
      {"device", device},
      {"budget_bytes", budget_bytes},
      {"peak_bytes", peak_bytes},
      {"overhead_bytes", overhead_bytes},
      {"arena_bytes", arena_bytes},
      {"host_peak_bytes", host_peak_bytes},
      {"minimum_budget_bytes", minimum_budget_bytes},
      {"batch_size", batch_size},
      {"micro_batch_tokens", micro_batch_tokens},
      {"micro_batches", micro_batches},
      {"max_length", max_length},
      {"precision", precision},
      {"optimizer", optimizer},
      {"recompute", recompute},
      {"head_chunk_tokens", head_chunk_tokens},
      {"converts_weights", converts_weights},
      {"offload", offload},
      {"outside_bytes", outside_bytes},
      {"kept_layers", kept_layers},
      {"kept_bytes", kept_bytes},
      {"predicted_tokens_per_second", or_null(predicted_tokens_per_second)},
      {"items", OrderedJson::array()},
  };
  for (const PlanItem& item : items) {
    json["items"].push_back({{"name", item.name}, {"bytes", item.bytes}});
  }
  if (!fits) {
    json["would_fit_with"] = OrderedJson::array();
    for (const Alternative& a : would_fit_with) json["would_fit_with"].push_back(json_of(a));
    if (smallest_with) json["smallest_with"] = json_of(*smallest_with);
  }
  if (!sweep.empty()) {
    json["sweep"] = OrderedJson::array();
    for (const SweepPoint& point : sweep) json["sweep"].push_back(json_of(point));
  }
  return json.dump(2);
}

std::string PlanSummary::to_text() const {
  std::vector<PlanItem> largest_first = items;
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [](const PlanItem& a, const PlanItem& b) { return a.bytes > b.bytes; });
  std::string text = fmt::format("plan for {} on the {}\n", format_bytes(budget_bytes), device);
  for (const PlanItem& item : largest_first) {
    text += fmt::format("  {:<32}{:>12}\n", item.name, format_bytes(item.bytes));
  }
  text += fmt::format("  {:<32}{:>12}   ({} is the least that works)\n", "peak",
                      format_bytes(peak_bytes), format_bytes(minimum_budget_bytes));
  text +=
      fmt::format("  a step: {} examples of up to {} tokens, in micro-batches of up to {} tokens",
                  batch_size, max_length, micro_batch_tokens);
  if (micro_batches > 1) text += fmt::format(" (at most {})", micro_batches);
  text += fmt::format("\n  recomputed: {}; precision {}, optimizer {}", recompute, precision,
                      optimizer);
  if (head_chunk_tokens > 0) {
    text += fmt::format("; logits of {} tokens at a time", head_chunk_tokens);
  }
  if (converts_weights) text += "; weights converted when used";
  if (outside_bytes > 0) {
    text += fmt::format("\n  offloaded: {}, {} {}", offloaded_things(offload),
                        format_bytes(outside_bytes), device == "cpu" ? "in a file" : "on the host");
  }
  if (kept_layers > 0) {
    text += fmt::format(
        "\n  kept: what the embeddings and layers {} give, computed once before training: {} in a "
        "file",
        kept_layers == 1 ? "0" : fmt::format("0-{}", kept_layers - 1), format_bytes(kept_bytes));
    if (drops_less) text += "; they have no dropout in this run";
  }
  if (!not_kept.empty()) text += "\n  not kept: " + not_kept;
  if (predicted_tokens_per_second) {
    text += fmt::format("\n  predicted: {:.0f} tokens a second", *predicted_tokens_per_second);
  }
  if (!fits) {
    text += fmt::format("\ndoes not fit: short by {}; the same results need at least {}",
                        format_bytes(minimum_budget_bytes - budget_bytes),
                        format_bytes(minimum_budget_bytes));
    if (!would_fit_with.empty()) text += "\nwith other results it would fit:";
    for (const Alternative& a : would_fit_with) text += "\n  " + text_of(a);
    if (would_fit_with.empty()) text += "\nnothing that changes the results makes it fit either";
    if (smallest_with) text += "; the least: " + text_of(*smallest_with);
  }
  if (!sweep.empty()) text += "\n\n" + sweep_text(sweep);
  return text;
}

}  // namespace snug

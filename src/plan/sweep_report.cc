#include "plan/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/progress.h"

namespace snug {
namespace {

constexpr size_t kWidth = 60, kHeight = 10;

std::string table(const std::vector<SweepPoint>& sweep) {
  const bool calibrated = sweep.front().tokens_per_second.has_value();
  const bool chunks =
      std::ranges::any_of(sweep, [](const SweepPoint& p) { return p.head_chunk_tokens > 0; });
  std::string text = fmt::format("  {:>12}{:>12}{:>14}", "budget", "peak", "micro-batch");
  if (chunks) text += fmt::format("{:>8}", "logits");
  text += fmt::format("{:>14}   recomputed\n", calibrated ? "tokens/s" : "time");
  for (const SweepPoint& point : sweep) {
    text += fmt::format("{} {:>12}{:>12}{:>14}", point.chosen ? '>' : ' ',
                        format_bytes(point.budget_bytes), format_bytes(point.peak_bytes),
                        fmt::format("{} x {}", point.micro_batches, point.micro_batch_tokens));
    if (chunks) text += fmt::format("{:>8}", point.head_chunk_tokens);
    text += calibrated ? fmt::format("{:>14.0f}", *point.tokens_per_second)
                       : fmt::format("{:>14}", fmt::format("{:.2f} x", point.relative_time));
    text += fmt::format("   {}{}{}\n", point.recompute,
                        point.converts_weights ? "; weights converted when used" : "",
                        point.offload == "none" ? "" : "; offloaded: " + point.offload);
  }
  return text;
}

// Speed over memory, as a share of the fastest: a column stands for a budget.
std::string chart(const std::vector<SweepPoint>& sweep) {
  const double least = double(sweep.front().budget_bytes), most = double(sweep.back().budget_bytes);
  const auto column_of = [&](uint64_t budget) {
    return most > least
               ? size_t(std::lround((double(budget) - least) / (most - least) * double(kWidth - 1)))
               : 0;
  };
  const auto row_of = [&](const SweepPoint& point) {  // from the top
    return kHeight -
           std::max<size_t>(1, size_t(std::lround(double(kHeight) / point.relative_time)));
  };
  std::vector<std::string> rows(kHeight, std::string(kWidth, ' '));
  for (size_t i = 0; i < sweep.size(); ++i) {
    const size_t end = i + 1 < sweep.size() ? column_of(sweep[i + 1].budget_bytes) : kWidth;
    for (size_t column = column_of(sweep[i].budget_bytes); column < end; ++column) {
      rows[row_of(sweep[i])][column] = '-';
    }
  }
  for (const SweepPoint& point : sweep) rows[row_of(point)][column_of(point.budget_bytes)] = '*';
  for (const SweepPoint& point : sweep) {
    if (point.chosen) rows[row_of(point)][column_of(point.budget_bytes)] = '@';
  }
  std::string text = "  speed\n";
  for (size_t row = 0; row < kHeight; ++row) {
    text += fmt::format("  {:>4} % |{}\n", (kHeight - row) * 100 / kHeight,
                        rows[row].substr(0, rows[row].find_last_not_of(' ') + 1));
  }
  const std::string from = format_bytes(sweep.front().budget_bytes),
                    to = format_bytes(sweep.back().budget_bytes);
  const size_t gap = kWidth > from.size() + to.size() ? kWidth - from.size() - to.size() : 1;
  text += fmt::format("         +{}\n          {}{}{}\n", std::string(kWidth, '-'), from,
                      std::string(gap, ' '), to);
  const bool any = std::ranges::any_of(sweep, &SweepPoint::chosen);
  return text + (any ? "          memory; @ is the plan above" : "          memory");
}

}  // namespace

std::string sweep_text(const std::vector<SweepPoint>& sweep) {
  return table(sweep) + "\n" + chart(sweep);
}

}  // namespace snug

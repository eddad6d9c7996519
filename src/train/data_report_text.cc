// `snug data` in words, as a chart, and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/json.h"
#include "train/data_report.h"

namespace snug {
namespace {

constexpr size_t kMostLabels = 20;  // listed, the most frequent ones
constexpr uint32_t kMostBars = 16;
constexpr size_t kBarColumns = 40;

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100 * double(part) / double(whole);
}

std::string bar(uint64_t count, uint64_t highest) {
  // Eighths of a column, so that rare lengths still show.
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths =
      std::max<uint64_t>(count > 0, uint64_t(double(count) / double(highest) * kBarColumns * 8));
  std::string text;
  for (uint64_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

void add_labels(const FilesReport& report, std::string& out) {
  if (report.labels.empty()) return;
  std::vector<std::pair<std::string, uint64_t>> labels(report.labels.begin(), report.labels.end());
  std::ranges::stable_sort(labels, std::greater(), &std::pair<std::string, uint64_t>::second);
  uint64_t total = 0;
  for (const auto& label : labels) total += label.second;
  out += fmt::format("labels         {}\n", labels.size());
  for (size_t i = 0; i < std::min(labels.size(), kMostLabels); ++i) {
    out += fmt::format("  {:<24}{:>12}  {:5.1f} %\n", labels[i].first, labels[i].second,
                       percent(labels[i].second, total));
  }
  if (labels.size() > kMostLabels) {
    out += fmt::format("  and {} more\n", labels.size() - kMostLabels);
  }
}

// Widths are powers of two: memory follows lengths in such steps, and files can be compared.
void add_histogram(const FilesReport& report, size_t max_length, std::string& out) {
  const uint32_t longest = report.lengths.rbegin()->first;
  const uint32_t width = std::bit_ceil(std::max(1u, (longest + kMostBars) / kMostBars));
  std::vector<uint64_t> bars(longest / width + 1);
  for (const auto& [length, count] : report.lengths) bars[length / width] += count;
  const uint64_t highest = *std::ranges::max_element(bars);
  for (size_t i = 0; i < bars.size(); ++i) {
    const size_t first = i * width, last = first + width - 1;
    const bool over = max_length > 0 && first > max_length;
    const std::string range =
        width == 1 ? fmt::to_string(first) : fmt::format("{}-{}", first, last);
    out += fmt::format("  {:>13} {}{:<{}} {:>6.2f} %\n", range, over ? "!" : " ",
                       bar(bars[i], highest), kBarColumns, percent(bars[i], report.rows));
  }
}

void add_lengths(const FilesReport& report, size_t max_length, std::string& out) {
  if (report.lengths.empty()) return;
  out += fmt::format(
      "tokens         {} (a row: mean {:.1f}, median {}, 95 % up to {}, 99 % up to {}, longest "
      "{})\n",
      report.tokens, double(report.tokens) / double(report.rows), report.percentile(0.5),
      report.percentile(0.95), report.percentile(0.99), report.percentile(1));
  if (max_length > 0) {
    const uint64_t longer = report.longer_than(max_length);
    out += fmt::format("longer than {:<6}{} rows, {:.2f} %\n", max_length, longer,
                       percent(longer, report.rows));
  }
  add_histogram(report, max_length, out);
}

std::string text_of(const FilesReport& report, const DataReportOptions& options) {
  std::string out = fmt::format("rows           {}\n", report.rows);
  if (report.bad_rows > 0) {
    out += fmt::format("bad rows       {}\n", report.bad_rows);
    for (const std::string& message : report.first_bad) out += "  " + message + "\n";
    if (report.bad_rows > report.first_bad.size()) {
      out += fmt::format("  and {} more\n", report.bad_rows - report.first_bad.size());
    }
  }
  for (const std::string& problem : report.problems) out += "problem        " + problem + "\n";
  if (report.unlabelled > 0) out += fmt::format("unlabelled     {}\n", report.unlabelled);
  if (options.labelling == Labelling::kTags) {
    out += fmt::format("words          {}\n", report.words);
  }
  if (options.labelling == Labelling::kAnswer) {
    out +=
        fmt::format("answered       {}\nno answer      {}\n", report.answered, report.unanswerable);
  }
  if (options.labelling == Labelling::kNumber && report.rows > report.unlabelled) {
    out += fmt::format("scores         from {:g} to {:g}, mean {:.4g}\n", report.least, report.most,
                       report.sum / double(report.rows - report.unlabelled));
  }
  add_labels(report, out);
  out += fmt::format("duplicates     {} rows have the text of another, {:.2f} %\n",
                     report.duplicates, percent(report.duplicates, report.rows));
  if (report.contradictions > 0 && options.labelling != Labelling::kTags &&
      options.labelling != Labelling::kAnswer) {
    out += fmt::format("contradictions {} texts have several labels\n", report.contradictions);
  }
  add_lengths(report, options.max_length, out);
  return out;
}

OrderedJson json_of(const FilesReport& report, const DataReportOptions& options) {
  OrderedJson json = {{"rows", report.rows},
                      {"bad_rows", report.bad_rows},
                      {"first_bad_rows", report.first_bad},
                      {"problems", report.problems},
                      {"unlabelled", report.unlabelled},
                      {"labels", report.labels},
                      {"duplicates", report.duplicates},
                      {"contradictions", report.contradictions}};
  if (options.labelling == Labelling::kTags) json["words"] = report.words;
  if (options.labelling == Labelling::kAnswer) {
    json["answered"] = report.answered, json["unanswerable"] = report.unanswerable;
  }
  if (options.labelling == Labelling::kNumber && report.rows > report.unlabelled) {
    json["scores"] = {{"least", report.least},
                      {"most", report.most},
                      {"mean", report.sum / double(report.rows - report.unlabelled)}};
  }
  if (report.lengths.empty()) return json;
  json["tokens"] = {
      {"total", report.tokens},         {"mean", double(report.tokens) / double(report.rows)},
      {"p50", report.percentile(0.5)},  {"p95", report.percentile(0.95)},
      {"p99", report.percentile(0.99)}, {"longest", report.percentile(1)}};
  if (options.max_length > 0) {
    json["tokens"]["max_length"] = options.max_length;
    json["tokens"]["longer_rows"] = report.longer_than(options.max_length);
  }
  OrderedJson lengths = OrderedJson::array();
  for (const auto& [length, count] : report.lengths) lengths.push_back({length, count});
  json["tokens"]["rows_by_length"] = lengths;
  return json;
}

}  // namespace

std::string DataReport::to_text() const {
  std::string out = text_of(files, options);
  if (!validation) return out;
  out += "\nvalidation\n" + text_of(*validation, options);
  return out +
         fmt::format(
             "in both        {} validation rows have a text of the training files, {:.2f} %\n",
             shared, percent(shared, validation->rows));
}

std::string DataReport::to_json() const {
  OrderedJson json = json_of(files, options);
  if (validation) {
    json["validation"] = json_of(*validation, options);
    json["shared_rows"] = shared;
  }
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace snug

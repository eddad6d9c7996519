// Evaluations in words and as JSON.
#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <functional>

#include "core/json.h"
#include "snug/evaluation.h"
#include "text/unicode.h"

namespace snug {
namespace {

constexpr size_t kMostRows = 40, kWorstRows = 20;  // with more than so many rows, so many of them
constexpr size_t kMostColumns = 12;                // of a confusion matrix that a terminal can show
constexpr size_t kMostPairs = 10;                  // of what is confused, where it is larger
constexpr size_t kNameWidth = 24;

// Columns of a terminal: two for wide characters, none for marks.
size_t width_of(char32_t c) {
  if (U_MASK(u_charType(UChar32(c))) & (U_GC_MN_MASK | U_GC_ME_MASK | U_GC_CF_MASK)) return 0;
  const int32_t width = u_getIntPropertyValue(UChar32(c), UCHAR_EAST_ASIAN_WIDTH);
  return width == U_EA_FULLWIDTH || width == U_EA_WIDE ? 2 : 1;
}
size_t width_of(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size();) width += width_of(next_code_point(text, at));
  return width;
}

// A name as a table shows it: without control characters and not too wide.
std::string shown(std::string_view name) {
  std::string text;
  size_t width = 0;
  for (size_t at = 0; at < name.size();) {
    const char32_t c = next_code_point(name, at);
    width += width_of(c);
    if (width + (at < name.size()) > kNameWidth) return text + "…";
    append_utf8(text, u_iscntrl(UChar32(c)) ? U' ' : c);
  }
  return text;
}

std::string padded(std::string text, size_t width) {
  const size_t own = width_of(text);
  return own < width ? text + std::string(width - own, ' ') : text;
}
std::string right_aligned(std::string text, size_t width) {
  const size_t own = width_of(text);
  return own < width ? std::string(width - own, ' ') + text : text;
}

std::string row_text(const ScoreRow& row, std::string name, size_t width) {
  return fmt::format("{} {:>10.4f} {:>9.4f} {:>9.4f} {:>10}\n", padded(std::move(name), width),
                     row.precision, row.recall, row.f1, row.support);
}

// All, or of many those with the lowest F1 among the ones that are in the data.
std::vector<const ScoreRow*> chosen_rows(const std::vector<ScoreRow>& rows) {
  std::vector<const ScoreRow*> chosen;
  for (const ScoreRow& row : rows) {
    if (rows.size() <= kMostRows || row.support > 0) chosen.push_back(&row);
  }
  if (rows.size() <= kMostRows) return chosen;
  std::ranges::stable_sort(chosen, {}, &ScoreRow::f1);
  chosen.resize(std::min(chosen.size(), kWorstRows));
  return chosen;
}

std::string table_text(const ScoreReport& report) {
  const std::vector<const ScoreRow*> rows = chosen_rows(report.rows);
  size_t width = std::string_view("weighted average").size();
  for (const ScoreRow* row : rows) width = std::max(width, width_of(shown(row->name)));
  std::string text = fmt::format("{} {:>10} {:>9} {:>9} {:>10}\n", padded(report.unit, width),
                                 "precision", "recall", "f1", "support");
  for (const ScoreRow* row : rows) text += row_text(*row, shown(row->name), width);
  if (rows.size() < report.rows.size()) {
    text += fmt::format("(the {} with the lowest f1, of {}; --json has all)\n", rows.size(),
                        report.rows.size());
  }
  for (const ScoreRow& row : report.averages) text += row_text(row, row.name + " average", width);
  return text;
}

std::string matrix_text(const ScoreReport& report) {
  const auto& counts = report.confusion;
  size_t name_width = 0;
  for (const ScoreRow& row : report.rows) {
    name_width = std::max(name_width, width_of(shown(row.name)));
  }
  std::string text = padded("", name_width);
  std::vector<size_t> widths;
  for (size_t column = 0; column < counts.size(); ++column) {
    const std::string name = shown(report.rows[column].name);
    size_t width = width_of(name);
    for (const auto& row : counts) width = std::max(width, std::to_string(row[column]).size());
    text += "  " + right_aligned(name, width);
    widths.push_back(width);
  }
  for (size_t row = 0; row < counts.size(); ++row) {
    text += "\n" + padded(shown(report.rows[row].name), name_width);
    for (size_t column = 0; column < counts.size(); ++column) {
      text += "  " + right_aligned(std::to_string(counts[row][column]), widths[column]);
    }
  }
  return "confusion matrix: a row is what the data says, a column what was predicted\n" + text +
         "\n";
}

// What a large matrix has outside its diagonal, the most frequent first.
std::string confusions_text(const ScoreReport& report) {
  struct Pair {
    size_t expected, predicted;
    uint64_t count;
  };
  std::vector<Pair> pairs;
  for (size_t i = 0; i < report.confusion.size(); ++i) {
    for (size_t j = 0; j < report.confusion.size(); ++j) {
      if (i != j && report.confusion[i][j] > 0) pairs.push_back({i, j, report.confusion[i][j]});
    }
  }
  if (pairs.empty()) return "";
  std::ranges::stable_sort(pairs, std::greater(), &Pair::count);
  pairs.resize(std::min(pairs.size(), kMostPairs));
  size_t width = 0;
  for (const Pair& pair : pairs) {
    width = std::max(width, width_of(shown(report.rows[pair.expected].name)));
  }
  std::string text = "most frequent mistakes: what the data says -> what was predicted\n";
  for (const Pair& pair : pairs) {
    text += fmt::format("{:>8}  {} -> {}\n", pair.count,
                        padded(shown(report.rows[pair.expected].name), width),
                        shown(report.rows[pair.predicted].name));
  }
  return text;
}

}  // namespace

std::string ScoreReport::to_text() const {
  if (unit.empty()) return "";
  std::string text = table_text(*this);
  if (!confusion.empty()) {
    text += "\n" + (confusion.size() <= kMostColumns ? matrix_text(*this) : confusions_text(*this));
  }
  return text;
}

std::string Evaluation::to_text() const {
  std::string text;
  for (const auto& [name, value] : metrics) text += fmt::format("{:<24}{:.6g}\n", name, value);
  if (!report.unit.empty()) text += "\n" + report.to_text();
  return text;
}

std::string Evaluation::to_json() const {
  OrderedJson json(metrics);
  if (!report.unit.empty()) {
    OrderedJson& rows = json["per_" + report.unit] = OrderedJson::array();
    for (const ScoreRow& row : report.rows) {
      rows.push_back({{report.unit, row.name},
                      {"precision", row.precision},
                      {"recall", row.recall},
                      {"f1", row.f1},
                      {"support", row.support}});
    }
  }
  if (!report.confusion.empty()) json["confusion_matrix"] = report.confusion;
  return json.dump(2);
}

}  // namespace snug

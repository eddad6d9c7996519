#include "data/row_labels.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "text/unicode.h"

namespace snug {
namespace {

// A word, or one of several labels, may have none.
LabelCollector::Settings of_parts(LabelCollector::Settings settings) {
  if (settings.need == LabelNeed::kRequired) settings.need = LabelNeed::kOptional;
  return settings;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == text.npos ? std::string_view()
                            : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

}  // namespace

RowKind row_kind(Labelling labelling) {
  if (labelling == Labelling::kTags) return RowKind::kWords;
  return labelling == Labelling::kAnswer ? RowKind::kQuestions : RowKind::kTexts;
}

char label_list_separator(Labelling labelling, char separator) {
  return labelling == Labelling::kClasses ? separator : '\0';
}

uint32_t fixed_labels(Labelling labelling) {
  switch (labelling) {
    case Labelling::kClass:
    case Labelling::kNumber:
      return 1;
    case Labelling::kAnswer:
      return 2;
    case Labelling::kClasses:
    case Labelling::kTags:
      return 0;
  }
  return 0;
}

RowLabeller::RowLabeller(Labelling labelling, LabelCollector::Settings settings, char separator)
    : labelling_(labelling),
      settings_(settings),
      separator_(separator),
      collector_(labelling == Labelling::kClass ? settings : of_parts(settings)) {}

void RowLabeller::add(const Row& row, RowLabels& out) {
  out.labels.clear();
  out.words.clear();
  out.answer.reset();
  const size_t known = collector_.size();
  try {
    label(row, out);
  } catch (const Error&) {
    remove(out.labels, out.words);
    collector_.forget_from(known);
    throw;
  }
}

void RowLabeller::remove(std::span<const int32_t> labels, std::span<const TaggedWord> words) {
  if (labelling_ == Labelling::kClass || labelling_ == Labelling::kClasses) {
    for (const int32_t id : labels) collector_.remove(id);
  }
  for (const TaggedWord& word : words) collector_.remove(word.tag);
}

void RowLabeller::label(const Row& row, RowLabels& out) {
  const bool needed = settings_.need == LabelNeed::kRequired;
  switch (labelling_) {
    case Labelling::kClass:
      out.labels.push_back(collector_.add(row.label, row.line));
      break;
    case Labelling::kClasses: {
      if (needed && !row.label) {
        fail(ErrorKind::kInput, "{}: line {}: the row has no labels", settings_.file, row.line);
      }
      for (std::string_view rest = row.label.value_or(""); !rest.empty();) {
        const size_t end = std::min(rest.find(separator_), rest.size());
        const int32_t id = collector_.add(trimmed(rest.substr(0, end)), row.line);
        const bool repeated = std::ranges::find(out.labels, id) != out.labels.end();
        if (repeated) collector_.remove(id);  // a label counts once a row
        if (id >= 0 && !repeated) out.labels.push_back(id);
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      break;
    }
    case Labelling::kNumber:
      if (settings_.need == LabelNeed::kIgnored ||
          (!needed && trimmed(row.label.value_or("")).empty())) {
        out.labels.push_back(-1);
      } else {
        out.labels.push_back(std::bit_cast<int32_t>(number(row)));
      }
      break;
    case Labelling::kTags:
      // Where tags are needed, the reader has refused words without one, but for those that shall
      // count for nothing.
      for (const Word& word : row.words) {
        out.words.push_back({word.begin, word.end, collector_.add(word.label, row.line)});
      }
      break;
    case Labelling::kAnswer:
      if (row.answers.empty()) break;
      const Answer& first = row.answers.front();
      out.answer = {first.begin, first.begin + count_code_points(first.text)};
      break;
  }
}

float RowLabeller::number(const Row& row) const {
  const std::string_view text = trimmed(row.label.value_or(""));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(float(value))) {
    fail(ErrorKind::kInput, "{}: line {}: the label is \"{}\", expected a number", settings_.file,
         row.line, text.substr(0, 60));
  }
  return float(value);
}

LabelCollector::Result RowLabeller::finish() {
  if (labelling_ == Labelling::kNumber) return {{{"score"}}, {0}, {0}};
  LabelCollector::Result result = collector_.finish();
  const bool has_set = labelling_ == Labelling::kClasses || labelling_ == Labelling::kTags;
  if (has_set && settings_.need == LabelNeed::kRequired && result.labels.names.empty()) {
    fail(ErrorKind::kInput, "{}: no row has a label", settings_.file);
  }
  if (labelling_ == Labelling::kClasses && result.labels.names.size() > kMostClasses) {
    fail(ErrorKind::kInput, "{}: {} different labels, expected at most {}", settings_.file,
         result.labels.names.size(), kMostClasses);
  }
  return result;
}

}  // namespace snug

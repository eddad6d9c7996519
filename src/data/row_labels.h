// The labels of rows as numbers. Class names become ids in the order of their first appearance; the
// final order is known at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/labels.h"
#include "data/row_reader.h"

namespace snug {

// What is learned about a row.
enum class Labelling : uint8_t {
  kClass,    // one of a set
  kClasses,  // any of a set, none included
  kNumber,
  kTags,    // one of a set for every word
  kAnswer,  // where in the second text the answer stands
};

RowKind row_kind(Labelling labelling);
// What stands between the labels of a row where it may have several; otherwise 0.
char label_list_separator(Labelling labelling, char separator);
// Labels that a stored row has; those of kClasses vary, and are at most so many.
uint32_t fixed_labels(Labelling labelling);
inline constexpr uint32_t kMostClassWords = 64, kMostClasses = 32 * kMostClassWords;

struct TaggedWord {
  size_t begin = 0, end = 0;  // bytes of the text
  int32_t tag = -1;           // -1: none
};

struct AnswerPlace {
  uint64_t begin = 0, end = 0;  // code points of the second text
};

struct RowLabels {
  // The class, or -1; the classes; the bits of a number, or -1, which is none. Nothing where words
  // or answers count.
  std::vector<int32_t> labels{};
  std::vector<TaggedWord> words{};
  std::optional<AnswerPlace> answer{};  // the first of them
};

class RowLabeller {
 public:
  // Labels of kClasses are separated by `separator`.
  RowLabeller(Labelling labelling, LabelCollector::Settings settings, char separator);

  void add(
      const Row& row,
      RowLabels& out);  // replaces the contents of `out`; errors are kInput, and nothing is counted
  // Takes back what was counted for a row that is left out after all.
  void remove(std::span<const int32_t> labels, std::span<const TaggedWord> words);
  LabelCollector::Result finish();

 private:
  void label(const Row& row, RowLabels& out);
  float number(const Row& row) const;

  Labelling labelling_;
  LabelCollector::Settings settings_;
  char separator_;
  LabelCollector collector_;
};

}  // namespace snug

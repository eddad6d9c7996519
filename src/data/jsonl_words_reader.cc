// Words and their tags from JSON Lines: {"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}.
#include "data/columns.h"
#include "data/json_lines.h"
#include "data/readers.h"
#include "data/word_row.h"

namespace snug {
namespace {

namespace dom = simdjson::dom;

// What Hugging Face's data writes for a word that no loss is taken at.
constexpr std::string_view kNoLabel = "-100";

class JsonlWordsReader final : public RowReader {
 public:
  JsonlWordsReader(TextWindow window, const RowReaderOptions& options)
      : lines_(std::move(window)),
        labels_(options.labels),
        map_(resolve_columns(lines_.fields().names(), options, lines_.file())) {}

  bool next(Row& row) override {
    if (!lines_.next()) return false;
    sentence_.clear();
    const dom::array words = list(map_.names.text);
    const dom::element* tags = map_.label ? lines_.fields().find(map_.names.label) : nullptr;
    if (tags != nullptr && tags->is_null()) tags = nullptr;
    if (tags == nullptr && labels_ == LabelNeed::kRequired) {
      lines_.refuse("no \"{}\"; expected a list of tags", map_.names.label);
    }
    if (tags != nullptr) {
      add_tagged(words, list(map_.names.label));
    } else {
      for (const dom::element word : words) sentence_.add(word_of(word), {});
    }
    row = Row{.line = lines_.line()};
    sentence_.finish(row);
    return true;
  }
  uint64_t passed() const override { return lines_.passed(); }
  uint64_t bytes_read() const override { return lines_.stored_bytes(); }
  const Columns& columns() const override { return map_.names; }

 private:
  dom::array list(std::string_view key) const {
    const dom::element* value = lines_.fields().find(key);
    if (value == nullptr) lines_.refuse("no \"{}\"; expected a list", key);
    if (!value->is_array()) lines_.refuse("\"{}\" is {}, expected a list", key, type_name(*value));
    const dom::array array = dom::array(*value);
    if (array.size() > WordRow::kMaxWords) {
      lines_.refuse("\"{}\" has more than {} items", key, WordRow::kMaxWords);
    }
    return array;
  }

  void add_tagged(dom::array words, dom::array tags) {
    if (words.size() != tags.size()) {
      lines_.refuse("{} words in \"{}\", but {} tags in \"{}\"", words.size(), map_.names.text,
                    tags.size(), map_.names.label);
    }
    auto tag = tags.begin();
    for (const dom::element word : words) {
      sentence_.add(word_of(word), tag_of(*tag));
      ++tag;
    }
  }

  std::string_view word_of(dom::element word) const {
    if (word.is_string()) return word.get_string().value_unsafe();
    lines_.refuse("word {} of \"{}\" is {}, expected a string", sentence_.size() + 1,
                  map_.names.text, type_name(word));
  }

  std::string_view tag_of(dom::element tag) {
    std::string_view label;
    if (tag.is_string()) {
      label = tag.get_string().value_unsafe();
    } else if (!tag.is_null()) {
      number_ = integer_text(tag);
      if (number_.empty()) {
        lines_.refuse("tag {} of \"{}\" is {}, expected a string or an integer",
                      sentence_.size() + 1, map_.names.label, type_name(tag));
      }
      label = number_;
      if (label == kNoLabel) return {};
    }
    if (label.empty() && labels_ == LabelNeed::kRequired) {
      lines_.refuse("tag {} of \"{}\" is {}", sentence_.size() + 1, map_.names.label,
                    tag.is_null() ? "null" : "empty");
    }
    return label;
  }

  JsonLines lines_;
  LabelNeed labels_;
  ColumnMap map_;
  WordRow sentence_;
  std::string number_;  // storage for a tag that is no string
};

}  // namespace

std::unique_ptr<RowReader> jsonl_words_reader(TextWindow window, const RowReaderOptions& options) {
  return std::make_unique<JsonlWordsReader>(std::move(window), options);
}

}  // namespace snug

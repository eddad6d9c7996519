// Rows to examples: token ids, and what is to be learned about them. A row is one example, or as
// many as it has windows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/row_labels.h"
#include "text/tokenizer.h"

namespace snug {

// What is done with texts that have more than max_length tokens.
enum class LongTexts : uint8_t {
  kHead,
  kTail,
  kHeadAndTail,
  kWindows
};  // what is kept; windows keep everything

struct EncodingOptions {
  Labelling labelling = Labelling::kClass;
  size_t max_length = 512;  // tokens including specials
  LongTexts long_texts = LongTexts::kHead;
  size_t stride = 0;          // tokens that a window shares with the one before it
  bool empty_is_end = false;  // a text without a token is read as the end-of-text token: where
                              // nothing is learned from it
  uint64_t word_room = EncodeOptions().word_room;  // see there
};

// A row whose labels are numbers.
struct LabelledRow {
  std::string_view text{};
  std::optional<std::string_view> text_pair{};
  std::span<const int32_t> labels{};
  std::span<const TaggedWord> words{};
  std::optional<AnswerPlace> answer{};
};

struct EncodedExample {
  Encoding encoding;            // with offsets where there are words or answers
  std::vector<int32_t> labels;  // the row's; of kAnswer the first and the last token of the answer
  // Of kTags, for every token: the word that it is the first token of and that is looked at in this
  // window, and the word's tag; else -1.
  std::vector<int32_t> words, tags;
  bool continues = false;  // the next example is of the same row
};

class ExampleEncoder {
 public:
  ExampleEncoder(const Tokenizer& tokenizer, const EncodingOptions& options);

  // The examples of one row, valid until the next call; they may be moved from. Errors are kInput,
  // kBudget and kUsage.
  std::span<EncodedExample> encode(const LabelledRow& row);
  // Whether that row was longer than max_length.
  bool was_long() const { return was_long_; }

 private:
  void encode_whole(const LabelledRow& row);
  void stand_in(Encoding& encoding) const;
  void encode_windows(std::string_view text, std::optional<std::string_view> pair);
  void place_words(const LabelledRow& row);
  void place_answer(const LabelledRow& row, EncodedExample& example) const;

  const Tokenizer* tokenizer_;
  EncodingOptions options_;
  std::vector<EncodedExample> examples_;
  size_t count_ = 0;  // of examples_
  bool was_long_ = false;
  struct WordPlace {
    size_t example = 0, token = 0;
    size_t context = 0;  // plus one; 0: not found
  };
  std::vector<WordPlace> places_;  // [words of the row]
  Encoding longer_;
  std::string spaced_;
};

}  // namespace snug

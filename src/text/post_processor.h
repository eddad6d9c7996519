// How the special tokens stand around one text, or two; read from the "post_processor" of
// tokenizer.json.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/json_fields.h"

namespace snug {

struct TemplatePiece {
  enum class Kind { kFirst, kSecond, kSpecial };
  Kind kind = Kind::kFirst;
  int32_t type_id = 0;
  std::vector<int32_t> ids = {};  // of a special
  bool operator==(const TemplatePiece&) const = default;
};
using Template = std::vector<TemplatePiece>;

struct Templates {
  Template single, pair;
  bool operator==(const Templates&) const = default;
};

struct TextEnds {
  int32_t cls = -1, sep = -1;
};

Templates plain_templates();                        // A; A B, the second with type 1
Templates bert_templates(const TextEnds& ends);     // [CLS] A [SEP]; [CLS] A [SEP] B [SEP]
Templates roberta_templates(const TextEnds& ends);  // <s> A </s>; <s> A </s></s> B </s>, all type 0
// A <sep> <cls>; A <sep> B <sep> <cls>, <cls> type 2.
Templates xlnet_templates(const TextEnds& ends);
Templates t5_templates(int32_t end);  // A </s>; A </s> B </s>, all type 0
size_t count_specials(const Template& pieces);
// Every id that is inserted must exist (kInput).
void check_templates(const Templates& templates, int32_t vocab_size, std::string_view origin);

// A BertProcessing or TemplateProcessing; another type is refused, naming `also` among the
// supported ones.
Templates parse_templates(const JsonFields& fields, std::string_view origin,
                          std::string_view also = "");
// The ids of the fields "cls" and "sep", each a token with its id.
TextEnds parse_text_ends(const JsonFields& fields);

}  // namespace snug

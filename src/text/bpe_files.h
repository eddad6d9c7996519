// What the two ways to store a BPE tokenizer, tokenizer.json and vocab.json with merges.txt, have
// in common.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"

namespace snug {

// Merges as ids. Errors (kInput) name the file and the merge's place in it: `place` is a format
// such as "line {}" for its number.
class MergeParser {
 public:
  MergeParser(const std::vector<std::string>& tokens, std::string_view origin, std::string place);

  Merge parse(std::string_view left, std::string_view right, size_t number) const;
  Merge parse(std::string_view line, size_t number) const;  // "left right"

 private:
  int32_t find(std::string_view token, size_t number) const;
  [[noreturn]] void refuse(size_t number, const std::string& why) const;

  Vocabulary vocabulary_;
  std::string origin_, place_;
};

// By the tokens that RoBERTa must have.
BpeFamily family_of(const std::vector<std::string>& tokens,
                    const std::vector<AddedToken>& added = {});
SpecialNames special_names(BpeFamily family);

// The post-processor and decoder blocks of a tokenizer.json, as transformers writes them.
struct RobertaProcessing {
  std::string cls_token, sep_token;
  TextEnds ids;
};
Json byte_level_processor_json();
Json roberta_processor_json(const RobertaProcessing& roberta, const BpeModel& model);
Json byte_level_decoder_json();

}  // namespace snug

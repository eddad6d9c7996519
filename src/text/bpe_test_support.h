// What the tests of BPE share: a vocabulary small enough to check by eye.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "text/bpe.h"
#include "text/byte_level.h"

namespace snug {

// The 256 bytes in GPT-2's order, so that "a" is 64 and a space 220; then what the merges make.
//   256 he   257 ll   258 hell   259 hello   260 _hello   261 _w   262 or   263 _wor   264 ld
//   265 _world   266 __ (two spaces)
inline BpeVocabulary small_vocabulary() {
  BpeVocabulary vocabulary;
  for (uint8_t byte : byte_order()) {
    vocabulary.tokens.push_back(spell_bytes(std::string(1, static_cast<char>(byte))));
  }
  const std::string s = spell_bytes(" ");
  vocabulary.merges = {{"h", "e"},   {"l", "l"},        {"he", "ll"}, {"hell", "o"},
                       {s, "hello"}, {s, "w"},          {"o", "r"},   {s + "w", "or"},
                       {"l", "d"},   {s + "wor", "ld"}, {s, s}};
  for (const auto& [left, right] : vocabulary.merges) vocabulary.tokens.push_back(left + right);
  return vocabulary;
}

inline BpeVocabulary small_gpt2() {
  BpeVocabulary vocabulary = small_vocabulary();
  vocabulary.tokens.push_back("<|endoftext|>");  // 267
  return vocabulary;
}

// <s> 267, <pad> 268, </s> 269, <unk> 270, <mask> 271
inline BpeVocabulary small_roberta() {
  BpeVocabulary vocabulary = small_vocabulary();
  for (const char* special : {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}) {
    vocabulary.tokens.push_back(special);
  }
  return vocabulary;
}

inline std::string vocab_json(const BpeVocabulary& vocabulary) {
  Json json = Json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) json[vocabulary.tokens[id]] = id;
  return json.dump();
}

inline std::string merges_txt(const BpeVocabulary& vocabulary) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : vocabulary.merges) text += left + " " + right + "\n";
  return text;
}

// GPT-2's tokenizer.json.
inline Json small_bpe_json() {
  const BpeVocabulary vocabulary = small_gpt2();
  Json merges = Json::array();
  for (const auto& [left, right] : vocabulary.merges) merges.push_back(left + " " + right);
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", 267},
             {"content", "<|endoftext|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", true},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
          {"post_processor",
           {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}}},
          {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"vocab", Json::parse(vocab_json(vocabulary))},
            {"merges", merges}}}};
}

}  // namespace snug

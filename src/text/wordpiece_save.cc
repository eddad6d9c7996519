// Writes a WordPiece tokenizer as a Hugging Face folder has it. Transformers builds its
// BertTokenizer from tokenizer_config.json and the vocabulary alone, so that class is named, and
// vocab.txt written, only where they can say everything; otherwise it is the generic class, which
// obeys tokenizer.json.
#include <fmt/format.h>

#include <algorithm>

#include "core/file.h"
#include "text/tokenizer_json.h"
#include "text/wordpiece.h"

namespace snug {
namespace {

Json optional_flag(const std::optional<bool>& flag) { return flag ? Json(*flag) : Json(nullptr); }

OrderedJson added_token_json(const AddedToken& token) {
  return {{"content", token.content},       {"single_word", token.single_word},
          {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
          {"normalized", token.normalized}, {"special", token.special}};
}

OrderedJson normalizer_json(const NormalizerOptions& options) {
  return {{"type", "BertNormalizer"},
          {"clean_text", options.clean_text},
          {"handle_chinese_chars", options.handle_chinese_chars},
          {"strip_accents", optional_flag(options.strip_accents)},
          {"lowercase", options.lowercase}};
}

bool same(const Template& a, const Template& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const TemplatePiece& x, const TemplatePiece& y) {
                      return x.kind == y.kind && x.type_id == y.type_id && x.ids == y.ids;
                    });
}

Json bert_processing_json(const WordPieceSpec& spec, const SpecialIds& ids) {
  return {{"type", "BertProcessing"},
          {"sep", {*spec.specials.sep, ids.sep}},
          {"cls", {*spec.specials.cls, ids.cls}}};
}

// Whether transformers' BertTokenizer, which fixes everything else, means the same.
bool is_plain_bert(const WordPieceSpec& spec, const SpecialIds& ids) {
  WordPieceSpec plain;
  set_bert_template(plain, ids.cls, ids.sep);
  return spec.normalizer.clean_text && spec.continuing_prefix == plain.continuing_prefix &&
         spec.max_chars_per_word == plain.max_chars_per_word && ids.pad >= 0 && ids.mask >= 0 &&
         same(spec.single, plain.single) && same(spec.pair, plain.pair);
}

OrderedJson special_names_json(const SpecialNames& names) {
  OrderedJson json = OrderedJson::object();
  const auto put = [&](const char* key, const std::optional<std::string>& name) {
    if (name) json[key] = *name;
  };
  put("unk_token", names.unk);
  put("sep_token", names.sep);
  put("pad_token", names.pad);
  put("cls_token", names.cls);
  put("mask_token", names.mask);
  return json;
}

OrderedJson config_json(const WordPieceSpec& spec, const SpecialIds& ids) {
  OrderedJson json = special_names_json(spec.specials);
  json["tokenizer_class"] = is_plain_bert(spec, ids) ? "BertTokenizer" : "PreTrainedTokenizerFast";
  json["do_lower_case"] = spec.normalizer.lowercase;
  json["strip_accents"] = optional_flag(spec.normalizer.strip_accents);
  json["tokenize_chinese_chars"] = spec.normalizer.handle_chinese_chars;
  if (spec.model_max_length > 0) json["model_max_length"] = spec.model_max_length;
  OrderedJson added = OrderedJson::object();
  for (const AddedToken& token : spec.added)
    added[std::to_string(token.id)] = added_token_json(token);
  json["added_tokens_decoder"] = std::move(added);
  return json;
}

std::string vocab_object(const Vocabulary& vocabulary) {
  std::string text = "{";
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    text += fmt::format("{}{}:{}", id == 0 ? "" : ",", Json(vocabulary.token(id)).dump(), id);
  }
  return text + "}";
}

std::string tokenizer_json(const WordPieceSpec& spec, const Vocabulary& vocabulary,
                           const Json& post_processor) {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : spec.added) {
    OrderedJson entry = {{"id", token.id}};
    entry.update(added_token_json(token));
    added.push_back(std::move(entry));
  }
  const Json default_decoder = {
      {"type", "WordPiece"}, {"prefix", spec.continuing_prefix}, {"cleanup", true}};
  // The vocabulary is written by hand: the library's ordered objects take quadratic time.
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":{},"normalizer":{},)"
      R"("pre_tokenizer":{{"type":"BertPreTokenizer"}},"post_processor":{},"decoder":{},)"
      R"("model":{{"type":"WordPiece","unk_token":{},"continuing_subword_prefix":{},)"
      R"("max_input_chars_per_word":{},"vocab":{}}}}})",
      added.dump(), normalizer_json(spec.normalizer).dump(), post_processor.dump(),
      (spec.decoder.is_null() ? default_decoder : spec.decoder).dump(), Json(spec.unk_token).dump(),
      Json(spec.continuing_prefix).dump(), spec.max_chars_per_word, vocab_object(vocabulary));
}

// Empty when a token holds a line break and so cannot be a line.
std::string vocab_lines(const Vocabulary& vocabulary) {
  std::string text;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.token(id).find_first_of("\r\n") != std::string_view::npos) return "";
    text += vocabulary.token(id);
    text += '\n';
  }
  return text;
}

}  // namespace

void WordPieceTokenizer::save(const std::filesystem::path& folder) const {
  make_directories(folder);
  const bool from_vocab = spec_.post_processor.is_null() && spec_.single.size() > 1;
  const Json post_processor =
      from_vocab ? bert_processing_json(spec_, special_ids_) : spec_.post_processor;
  write_file_atomically(folder / "tokenizer.json",
                        tokenizer_json(spec_, vocabulary_, post_processor));
  write_file_atomically(folder / "tokenizer_config.json",
                        config_json(spec_, special_ids_).dump(2) + "\n");
  write_file_atomically(folder / "special_tokens_map.json",
                        special_names_json(spec_.specials).dump(2) + "\n");
  const std::string lines = is_plain_bert(spec_, special_ids_) ? vocab_lines(vocabulary_) : "";
  if (!lines.empty()) write_file_atomically(folder / "vocab.txt", lines);
}

}  // namespace snug

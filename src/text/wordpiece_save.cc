// Writes a WordPiece tokenizer as a Hugging Face folder has it. Transformers builds its
// BertTokenizer from tokenizer_config.json and the vocabulary alone, so that class is named, and
// vocab.txt written, only where they can say everything; otherwise it is the generic class, which
// obeys tokenizer.json.
#include <fmt/format.h>

#include "core/file.h"
#include "text/tokenizer_save.h"
#include "text/wordpiece.h"

namespace snug {
namespace {

Json optional_flag(const std::optional<bool>& flag) { return flag ? Json(*flag) : Json(nullptr); }

OrderedJson normalizer_json(const NormalizerOptions& options) {
  return {{"type", "BertNormalizer"},
          {"clean_text", options.clean_text},
          {"handle_chinese_chars", options.handle_chinese_chars},
          {"strip_accents", optional_flag(options.strip_accents)},
          {"lowercase", options.lowercase}};
}

Json post_processor_json(const TokenizerSpec& spec, const SpecialIds& ids) {
  const bool from_vocab = spec.post_processor.is_null() && spec.templates.single.size() > 1;
  if (!from_vocab) return spec.post_processor;
  return {{"type", "BertProcessing"},
          {"sep", {*spec.specials.sep, ids.sep}},
          {"cls", {*spec.specials.cls, ids.cls}}};
}

// Whether transformers' BertTokenizer, which fixes everything else, means the same.
bool is_plain_bert(const TokenizerSpec& spec, const WordPieceModel& model, const SpecialIds& ids) {
  const WordPieceModel plain;
  return model.normalizer.clean_text && model.continuing_prefix == plain.continuing_prefix &&
         model.max_chars_per_word == plain.max_chars_per_word && ids.pad >= 0 && ids.mask >= 0 &&
         spec.templates == bert_templates({ids.cls, ids.sep});
}

std::string model_json(const WordPieceModel& model, const Vocabulary& vocabulary) {
  return fmt::format(R"({{"type":"WordPiece","unk_token":{},"continuing_subword_prefix":{},)"
                     R"("max_input_chars_per_word":{},"vocab":{}}})",
                     Json(model.unk_token).dump(), Json(model.continuing_prefix).dump(),
                     model.max_chars_per_word, vocab_json_text(vocabulary));
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
  const bool plain = is_plain_bert(spec(), model_, special_ids());
  const Json default_decoder = {
      {"type", "WordPiece"}, {"prefix", model_.continuing_prefix}, {"cleanup", true}};
  write_file_atomically(
      folder / "tokenizer.json",
      tokenizer_json_text(
          spec(), {.normalizer = normalizer_json(model_.normalizer).dump(),
                   .pre_tokenizer = R"({"type":"BertPreTokenizer"})",
                   .post_processor = post_processor_json(spec(), special_ids()).dump(),
                   .decoder = (spec().decoder.is_null() ? default_decoder : spec().decoder).dump(),
                   .model = model_json(model_, vocabulary())}));
  save_tokenizer_config(folder, spec(),
                        {{"tokenizer_class", plain ? "BertTokenizer" : "PreTrainedTokenizerFast"},
                         {"do_lower_case", model_.normalizer.lowercase},
                         {"strip_accents", optional_flag(model_.normalizer.strip_accents)},
                         {"tokenize_chinese_chars", model_.normalizer.handle_chinese_chars}});
  const std::string lines = plain ? vocab_lines(vocabulary()) : "";
  if (!lines.empty()) write_file_atomically(folder / "vocab.txt", lines);
}

}  // namespace snug

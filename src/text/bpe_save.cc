// Writes a BPE tokenizer as a Hugging Face folder has it. As with WordPiece, the class of one
// family is named, and vocab.json with merges.txt written, only where these can say everything.
#include <fmt/format.h>

#include "core/file.h"
#include "text/bpe_files.h"
#include "text/tokenizer_save.h"

namespace snug {
namespace {

// Where transformers' class of that family, made from the vocabulary, the merges and
// tokenizer_config.json, means the same. Its other settings are those of vocab.json and merges.txt.
bool is_plain_roberta(const TokenizerSpec& spec, const BpeModel& model, const SpecialIds& ids) {
  return spec.post_processor.is_object() && spec.post_processor["type"] == "RobertaProcessing" &&
         model.use_regex && model.trim_spares_prefix == model.add_prefix_space && ids.pad >= 0 &&
         ids.unk >= 0 && ids.mask >= 0 && ids.bos >= 0 && ids.eos >= 0 &&
         spec.templates == roberta_templates({ids.cls, ids.sep});
}

bool is_plain_gpt2(const TokenizerSpec& spec, const BpeModel& model, const SpecialIds& ids) {
  return model.use_regex && !model.trim_offsets && ids.unk >= 0 && ids.bos >= 0 && ids.eos >= 0 &&
         spec.templates == plain_templates();
}

std::string merge_line(const Vocabulary& vocabulary, const Merge& merge) {
  return fmt::format("{} {}", vocabulary.token(merge.left), vocabulary.token(merge.right));
}

std::string model_json(const Vocabulary& vocabulary, std::span<const Merge> merges,
                       const Json& unk_token) {
  std::string list;
  for (const Merge& merge : merges) {
    if (!list.empty()) list += ',';
    list += Json(merge_line(vocabulary, merge)).dump();
  }
  return fmt::format(
      R"({{"type":"BPE","dropout":null,"unk_token":{},"continuing_subword_prefix":"",)"
      R"("end_of_word_suffix":"","fuse_unk":false,"byte_fallback":false,"ignore_merges":false,)"
      R"("vocab":{},"merges":[{}]}})",
      unk_token.dump(), vocab_json_text(vocabulary), list);
}

std::string merges_text(const Vocabulary& vocabulary, std::span<const Merge> merges) {
  std::string text = "#version: 0.2\n";
  for (const Merge& merge : merges) text += merge_line(vocabulary, merge) + "\n";
  return text;
}

}  // namespace

void BpeTokenizer::save(const std::filesystem::path& folder) const {
  make_directories(folder);
  const bool roberta = is_plain_roberta(spec(), model_, special_ids());
  const bool gpt2 = !roberta && is_plain_gpt2(spec(), model_, special_ids());
  const OrderedJson splitting = {{"type", "ByteLevel"},
                                 {"add_prefix_space", model_.add_prefix_space},
                                 {"trim_offsets", true},
                                 {"use_regex", model_.use_regex}};
  write_file_atomically(
      folder / "tokenizer.json",
      tokenizer_json_text(spec(), {.pre_tokenizer = splitting.dump(),
                                   .post_processor = spec().post_processor.dump(),
                                   .decoder = spec().decoder.dump(),
                                   .model = model_json(vocabulary(), merges(), model_.unk_token)}));
  OrderedJson settings = {{"tokenizer_class", roberta ? "RobertaTokenizer"
                                              : gpt2  ? "GPT2Tokenizer"
                                                      : "PreTrainedTokenizerFast"},
                          {"add_prefix_space", model_.add_prefix_space}};
  if (roberta) settings["trim_offsets"] = model_.trim_offsets;
  save_tokenizer_config(folder, spec(), settings);
  if (!roberta && !gpt2) return;
  write_file_atomically(folder / "vocab.json", vocab_json_text(vocabulary()));
  write_file_atomically(folder / "merges.txt", merges_text(vocabulary(), merges()));
}

}  // namespace snug

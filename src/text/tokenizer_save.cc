#include "text/tokenizer_save.h"

#include <fmt/format.h>

#include "core/file.h"

namespace snug {
namespace {

OrderedJson added_token_json(const AddedToken& token) {
  return {{"content", token.content},       {"single_word", token.single_word},
          {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
          {"normalized", token.normalized}, {"special", token.special}};
}

OrderedJson special_names_json(const SpecialNames& names) {
  OrderedJson json = OrderedJson::object();
  const auto put = [&](const char* key, const std::optional<std::string>& name) {
    if (name) json[key] = *name;
  };
  put("bos_token", names.bos);
  put("eos_token", names.eos);
  put("unk_token", names.unk);
  put("sep_token", names.sep);
  put("pad_token", names.pad);
  put("cls_token", names.cls);
  put("mask_token", names.mask);
  return json;
}

}  // namespace

std::string vocab_json_text(const Vocabulary& vocabulary) {
  // By hand: the library's ordered objects take quadratic time.
  std::string text = "{";
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    text += fmt::format("{}{}:{}", id == 0 ? "" : ",", Json(vocabulary.token(id)).dump(), id);
  }
  return text + "}";
}

std::string tokenizer_json_text(const TokenizerSpec& spec, const TokenizerJsonParts& parts) {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : spec.added) {
    OrderedJson entry = {{"id", token.id}};
    entry.update(added_token_json(token));
    added.push_back(std::move(entry));
  }
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":{},"normalizer":{},)"
      R"("pre_tokenizer":{},"post_processor":{},"decoder":{},"model":{}}})",
      added.dump(), parts.normalizer, parts.pre_tokenizer, parts.post_processor, parts.decoder,
      parts.model);
}

void save_tokenizer_config(const std::filesystem::path& folder, const TokenizerSpec& spec,
                           const OrderedJson& settings) {
  OrderedJson json = special_names_json(spec.specials);
  json.update(settings);
  if (spec.model_max_length > 0) json["model_max_length"] = spec.model_max_length;
  OrderedJson added = OrderedJson::object();
  for (const AddedToken& token : spec.added) {
    added[std::to_string(token.id)] = added_token_json(token);
  }
  json["added_tokens_decoder"] = std::move(added);
  write_file_atomically(folder / "tokenizer_config.json", json.dump(2) + "\n");
  write_file_atomically(folder / "special_tokens_map.json",
                        special_names_json(spec.specials).dump(2) + "\n");
}

}  // namespace snug

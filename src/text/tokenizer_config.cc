// tokenizer_config.json: the few settings of each family that change ids. The file is a bag of
// whatever the Python class was given, so, unlike tokenizer.json, keys that do not concern the ids
// are read over; those that would are refused.
#include <algorithm>
#include <unordered_map>

#include "core/error.h"
#include "core/progress.h"
#include "text/json_fields.h"
#include "text/tokenizer_json.h"

namespace snug {
namespace {

// A flag that contradicts tokenizer.json wins, as in transformers, but not silently. `overridden`
// is the part of tokenizer.json concerned; nullptr where there is no such file.
void override_flag(const JsonFields& fields, const std::string& origin, std::string_view key,
                   bool& flag, const char* overridden) {
  if (!fields.find(key)) return;
  const bool value = fields.boolean(key);
  if (overridden && value != flag) {
    warn(fmt::format("{}: {} is {}, which overrides the {} of tokenizer.json", origin, key, value,
                     overridden));
  }
  flag = value;
}

std::optional<std::string> token_name(const JsonFields& fields, std::string_view key) {
  const Json* value = fields.find(key);
  if (!value) return std::nullopt;
  if (value->is_object()) return fields.object(key).text("content");
  return fields.text(key);
}

void apply_names(const JsonFields& fields, SpecialNames& names) {
  const auto apply = [&](std::string_view key, std::optional<std::string>& name) {
    if (fields.has(key)) name = token_name(fields, key);
  };
  apply("pad_token", names.pad);
  apply("unk_token", names.unk);
  apply("cls_token", names.cls);
  apply("sep_token", names.sep);
  apply("mask_token", names.mask);
  apply("bos_token", names.bos);
  apply("eos_token", names.eos);
}

int32_t parse_id_key(const std::string& key, const JsonFields& parent) {
  const bool digits =
      !key.empty() && key.size() <= 7 &&
      std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) parent.refuse(key, "under an id of at most seven digits");
  return std::stoi(key);
}

// {"103": {"content": "[MASK]", ...}, ...}: what it says about a token replaces what was known.
void apply_added_tokens(const JsonFields& fields, const std::string& origin,
                        std::vector<AddedToken>& added) {
  if (!fields.find("added_tokens_decoder")) return;
  const JsonFields entries = fields.object("added_tokens_decoder");
  std::unordered_map<int32_t, size_t> place_of;
  for (size_t i = 0; i < added.size(); ++i) place_of.emplace(added[i].id, i);
  for (const auto& [key, entry] : entries.json().items()) {
    AddedToken token = parse_added_token(JsonFields(entry, origin, entries.name(key)));
    token.id = parse_id_key(key, entries);
    const auto [it, fresh] = place_of.try_emplace(token.id, added.size());
    if (fresh) {
      added.push_back(std::move(token));
    } else if (AddedToken& known = added[it->second]; known.content == token.content) {
      known = std::move(token);
    } else {
      fail(ErrorKind::kInput, "{}: {} is \"{}\", but that id is \"{}\"", origin, entries.name(key),
           token.content, known.content);
    }
  }
  std::sort(added.begin(), added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
}

// What the configuration says about a tokenizer of any family.
void apply_common(const JsonFields& fields, const std::string& origin, TokenizerSpec& spec) {
  apply_names(fields, spec.specials);
  apply_added_tokens(fields, origin, spec.added);
  if (fields.find("truncation_side") && fields.text("truncation_side") != "right") {
    warn(fmt::format("{}: truncation_side is ignored; long texts lose their end", origin));
  }
  // "No limit" is written as 10^30.
  if (const Json* length = fields.find("model_max_length");
      length && length->is_number() && *length > 0 && *length < 1e9) {
    spec.model_max_length = length->get<size_t>();
  }
}

void refuse_other_splitting(const JsonFields& fields) {
  const Json* never_split = fields.find("never_split");
  if (never_split && !never_split->empty()) {
    fields.refuse("never_split", "absent or empty (not supported)");
  }
  if (fields.find("do_basic_tokenize") && !fields.boolean("do_basic_tokenize")) {
    fields.refuse("do_basic_tokenize", "true (false is not supported)");
  }
}

}  // namespace

std::string tokenizer_class(const TokenizerConfig& config) {
  if (config.json.is_null()) return "";
  const JsonFields fields(config.json, config.origin, "");
  if (!fields.find("tokenizer_class")) return "";
  std::string name = fields.text("tokenizer_class");
  for (std::string_view suffix : {"Fast", "Tokenizer"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  return name;
}

void apply_tokenizer_config(const TokenizerConfig& config, WordPieceSpec& spec) {
  if (config.json.is_null()) return;
  const JsonFields fields(config.json, config.origin, "");
  NormalizerOptions& normalizer = spec.model.normalizer;
  const char* overridden = spec.common.templates.single.empty() ? nullptr : "normalizer";
  refuse_other_splitting(fields);
  override_flag(fields, config.origin, "do_lower_case", normalizer.lowercase, overridden);
  override_flag(fields, config.origin, "tokenize_chinese_chars", normalizer.handle_chinese_chars,
                overridden);
  if (fields.find("strip_accents")) {
    bool strips = normalizer.strips_accents();
    override_flag(fields, config.origin, "strip_accents", strips, overridden);
    normalizer.strip_accents = strips;
  }
  apply_common(fields, config.origin, spec.common);
}

void apply_tokenizer_config(const TokenizerConfig& config, BpeSpec& spec) {
  if (config.json.is_null()) return;
  const JsonFields fields(config.json, config.origin, "");
  const bool from_json = !spec.common.templates.single.empty();
  override_flag(fields, config.origin, "add_prefix_space", spec.model.add_prefix_space,
                from_json ? "pre_tokenizer" : nullptr);
  Json& processor = spec.common.post_processor;
  if (processor.is_object() && processor["type"] == "RobertaProcessing") {
    if (fields.find("add_prefix_space")) {
      spec.model.trim_spares_prefix = spec.model.add_prefix_space;
      processor["add_prefix_space"] = spec.model.add_prefix_space;
    }
    override_flag(fields, config.origin, "trim_offsets", spec.model.trim_offsets,
                  from_json ? "post_processor" : nullptr);
    processor["trim_offsets"] = spec.model.trim_offsets;
  }
  apply_common(fields, config.origin, spec.common);
}

// Its normalizer stays that of tokenizer.json: versions of transformers disagree on which counts.
void apply_tokenizer_config(const TokenizerConfig& config, UnigramSpec& spec) {
  if (config.json.is_null()) return;
  const JsonFields fields(config.json, config.origin, "");
  const std::string normalizer = spec.model.normalizer.dump();
  const auto compare = [&](std::string_view key, std::string_view step, bool present_means) {
    if (!fields.find(key)) return;
    const bool value = fields.boolean(key);
    const bool present = normalizer.find(fmt::format("\"{}\"", step)) != std::string::npos;
    if (value == (present == present_means)) return;
    warn(fmt::format(
        "{}: {} is {}, but the normalizer of tokenizer.json {} {}; tokenizer.json counts",
        config.origin, key, value, present ? "has" : "lacks", step));
  };
  compare("do_lower_case", "Lowercase", true);
  compare("keep_accents", "StripAccents", false);
  apply_common(fields, config.origin, spec.common);
}

// Its other settings are read where the family is known.
void apply_tokenizer_config(const TokenizerConfig& config, SentencePieceSpec& spec) {
  if (config.json.is_null()) return;
  apply_common(JsonFields(config.json, config.origin, ""), config.origin, spec.common);
}

}  // namespace snug

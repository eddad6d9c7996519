#include "text/bpe_files.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/tokenizer_json.h"

namespace snug {
namespace {

// One merge a line. The line "#version: ..." at the top, a byte order mark, CRLF and blank lines at
// the end are forgiven.
std::vector<Merge> parse_merge_lines(const NamedText& file,
                                     const std::vector<std::string>& tokens) {
  std::string_view text = strip_byte_order_mark(file.text);
  text = text.substr(0, text.find_last_not_of("\r\n") + 1);
  const MergeParser parser(tokens, file.origin, "line {}");
  std::vector<Merge> merges;
  for (size_t pos = 0, number = 1; pos < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', pos), text.size());
    std::string_view line = text.substr(pos, end - pos);
    pos = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line.starts_with("#version")) continue;
    merges.push_back(parser.parse(line, number));
  }
  return merges;
}

BpeFamily stated_family(const TokenizerConfig& config, const std::vector<std::string>& tokens) {
  const std::string name = tokenizer_class(config);
  constexpr std::array<std::string_view, 4> kLikeRoberta = {"Roberta", "Bart", "LED", "Longformer"};
  constexpr std::array<std::string_view, 3> kNoneInParticular = {"", "PreTrained",
                                                                 "TokenizersBackend"};
  const auto is_in = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (name == "GPT2") return BpeFamily::kGpt2;
  if (is_in(kLikeRoberta)) return BpeFamily::kRoberta;
  if (!is_in(kNoneInParticular)) {
    fail(ErrorKind::kInput, "{}: unsupported tokenizer_class \"{}\" for a vocab.json",
         config.origin, config.json["tokenizer_class"].get<std::string>());
  }
  // RoBERTa's vocabulary holds GPT-2's token too, but never as the first of a text.
  if (config.json.is_object() && config.json.value("bos_token", Json()) == "<|endoftext|>") {
    return BpeFamily::kGpt2;
  }
  return family_of(tokens);
}

void refuse_bos_and_eos(const TokenizerConfig& config) {
  if (config.json.is_null()) return;
  const JsonFields fields(config.json, config.origin, "");
  for (std::string_view key : {"add_bos_token", "add_eos_token"}) {
    if (fields.find(key) && fields.boolean(key)) {
      fields.refuse(key, "false (true is supported only with a tokenizer.json)");
    }
  }
}

// The special tokens that are there become added tokens; the two that RoBERTa puts around every
// text must be there.
void add_special_tokens(BpeSpec& spec, BpeFamily family, std::string_view origin) {
  const Vocabulary vocabulary(spec.common.tokens);
  std::vector<AddedToken>& all_added = spec.common.added;
  SpecialNames& names = spec.common.specials;
  const auto find = [&](const std::string& name) {
    const auto added = std::find_if(all_added.begin(), all_added.end(),
                                    [&](const AddedToken& token) { return token.content == name; });
    return added != all_added.end() ? added->id : vocabulary.find(name);
  };
  const auto add = [&](std::optional<std::string>& name, bool takes_space_before) {
    const int32_t id = name ? find(*name) : -1;
    if (id < 0) return name.reset();
    const auto known = [id](const AddedToken& token) { return token.id == id; };
    if (std::any_of(all_added.begin(), all_added.end(), known)) return;
    all_added.push_back({.content = *name,
                         .id = id,
                         .lstrip = takes_space_before,
                         .normalized = true,
                         .special = true});
  };
  const auto require = [&](const std::optional<std::string>& name, std::string_view role) {
    if (!name || find(*name) < 0) {
      fail(ErrorKind::kInput, "{}: the {} token \"{}\" is missing", origin, role,
           name.value_or(""));
    }
  };
  if (family == BpeFamily::kRoberta) {
    require(names.cls, "classification");
    require(names.sep, "separator");
  }
  for (auto* name : {&names.bos, &names.eos, &names.unk, &names.pad, &names.cls, &names.sep}) {
    add(*name, false);
  }
  add(names.mask, true);
  std::sort(all_added.begin(), all_added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });

  spec.common.templates = plain_templates();
  if (family == BpeFamily::kRoberta) {
    const TextEnds ends{find(*names.cls), find(*names.sep)};
    spec.common.templates = roberta_templates(ends);
    spec.common.post_processor = roberta_processor_json({*names.cls, *names.sep, ends}, spec.model);
  }
}

// All but the tokens and merges.
BpeSpec make_spec(BpeFamily family) {
  BpeSpec spec;
  spec.common.specials = special_names(family);
  spec.common.decoder = byte_level_decoder_json();
  spec.common.post_processor = byte_level_processor_json();
  if (family == BpeFamily::kRoberta) {
    spec.model.trim_offsets = true;
    spec.common.post_processor = {{"type", "RobertaProcessing"}};  // its tokens are found later
  }
  return spec;
}

}  // namespace

MergeParser::MergeParser(const std::vector<std::string>& tokens, std::string_view origin,
                         std::string place)
    : vocabulary_(tokens), origin_(origin), place_(std::move(place)) {}

void MergeParser::refuse(size_t number, const std::string& why) const {
  fail(ErrorKind::kInput, "{}: {}: {}", origin_, fmt::format(fmt::runtime(place_), number), why);
}

int32_t MergeParser::find(std::string_view token, size_t number) const {
  const int32_t id = vocabulary_.find(token);
  if (id >= 0 && unspell_bytes(token)) return id;
  refuse(number,
         fmt::format("the merge's token \"{}\" {}", replace_invalid_utf8(token.substr(0, 60)),
                     id < 0 ? "is not in the vocabulary" : "does not stand for bytes"));
}

Merge MergeParser::parse(std::string_view left, std::string_view right, size_t number) const {
  if (left.empty() || right.empty()) refuse(number, "a merge needs two tokens, found an empty one");
  return {find(left, number), find(right, number), find(std::string(left).append(right), number)};
}

Merge MergeParser::parse(std::string_view line, size_t number) const {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    refuse(number, fmt::format("expected two tokens with one space between, found \"{}\"",
                               replace_invalid_utf8(line.substr(0, 60))));
  }
  return parse(line.substr(0, space), line.substr(space + 1), number);
}

BpeFamily family_of(const std::vector<std::string>& tokens, const std::vector<AddedToken>& added) {
  const auto has = [&](std::string_view name) {
    return std::find(tokens.begin(), tokens.end(), name) != tokens.end() ||
           std::any_of(added.begin(), added.end(),
                       [&](const AddedToken& token) { return token.content == name; });
  };
  return has("<s>") && has("</s>") ? BpeFamily::kRoberta : BpeFamily::kGpt2;
}

SpecialNames special_names(BpeFamily family) {
  SpecialNames names;
  if (family == BpeFamily::kGpt2) {
    names.bos = names.eos = names.unk = "<|endoftext|>";
  } else {
    names.bos = names.cls = "<s>";
    names.eos = names.sep = "</s>";
    names.unk = "<unk>", names.pad = "<pad>", names.mask = "<mask>";
  }
  return names;
}

Json byte_level_processor_json() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", true},
          {"trim_offsets", false},
          {"use_regex", true}};
}

Json roberta_processor_json(const RobertaProcessing& roberta, const BpeModel& model) {
  return {{"type", "RobertaProcessing"},
          {"sep", Json::array({roberta.sep_token, roberta.ids.sep})},
          {"cls", Json::array({roberta.cls_token, roberta.ids.cls})},
          {"trim_offsets", model.trim_offsets},
          {"add_prefix_space", model.trim_spares_prefix}};
}

Json byte_level_decoder_json() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", true},
          {"trim_offsets", true},
          {"use_regex", true}};
}

std::unique_ptr<Tokenizer> parse_vocab_and_merges(const NamedText& vocab, const NamedText& merges,
                                                  const TokenizerConfig& config) {
  const Json json = parse_json(strip_byte_order_mark(vocab.text), vocab.origin);
  JsonFields(json, vocab.origin, "");
  std::vector<std::string> tokens = parse_vocab_object(json, "the vocabulary", vocab.origin);
  refuse_bos_and_eos(config);
  const BpeFamily family = stated_family(config, tokens);
  BpeSpec spec = make_spec(family);
  spec.common.tokens = std::move(tokens);
  spec.model.merges = parse_merge_lines(merges, spec.common.tokens);
  apply_tokenizer_config(config, spec);
  add_special_tokens(spec, family, vocab.origin);
  return std::make_unique<BpeTokenizer>(std::move(spec), vocab.origin);
}

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeVocabulary vocabulary, BpeFamily family) {
  BpeSpec spec = make_spec(family);
  spec.common.tokens = std::move(vocabulary.tokens);
  const MergeParser parser(spec.common.tokens, "vocabulary", "merge {}");
  for (const auto& [left, right] : vocabulary.merges) {
    spec.model.merges.push_back(parser.parse(left, right, spec.model.merges.size()));
  }
  add_special_tokens(spec, family, "vocabulary");
  return std::make_unique<BpeTokenizer>(std::move(spec), "vocabulary");
}

}  // namespace snug

// SentencePiece tokenizers from a model file and tokenizer_config.json: which family it is, and
// what that adds.
#include <algorithm>
#include <array>

#include "core/error.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer_json.h"

namespace snug {
namespace {

using Family = SentencePieceFamily;
using PieceType = SentencePieceProto::PieceType;

constexpr int64_t kMaxExtraIds = 10'000;

bool has_piece(const SentencePieceProto& proto, std::string_view text) {
  return std::any_of(proto.pieces.begin(), proto.pieces.end(),
                     [&](const SentencePieceProto::Piece& piece) { return piece.text == text; });
}

Family family_of(const SentencePieceProto& proto, const TokenizerConfig& config,
                 std::string_view origin) {
  const std::string name = tokenizer_class(config);
  if (name == "Albert") return Family::kAlbert;
  if (name == "XLNet") return Family::kXlnet;
  if (name == "XLMRoberta") return Family::kXlmRoberta;
  if (name == "T5") return Family::kT5;
  constexpr std::array<std::string_view, 3> kNoneInParticular = {"", "PreTrained",
                                                                 "TokenizersBackend"};
  if (std::find(kNoneInParticular.begin(), kNoneInParticular.end(), name) ==
      kNoneInParticular.end()) {
    fail(ErrorKind::kInput,
         "{}: unsupported tokenizer_class \"{}\" for a SentencePiece model (supported: "
         "AlbertTokenizer, XLNetTokenizer, XLMRobertaTokenizer, T5Tokenizer)",
         config.origin, config.json["tokenizer_class"].get<std::string>());
  }
  if (has_piece(proto, "[CLS]") && has_piece(proto, "[SEP]")) return Family::kAlbert;
  if (has_piece(proto, "<cls>") && has_piece(proto, "<sep>")) return Family::kXlnet;
  // A file of this name belongs to a family that counts ids in its own way, and several do.
  if (origin.ends_with("sentencepiece.bpe.model")) {
    fail(ErrorKind::kInput,
         "{}: the family of this model is not known, expected a tokenizer_class in "
         "tokenizer_config.json",
         origin);
  }
  return Family::kPlain;
}

SpecialNames special_names(Family family, const SentencePieceProto& proto) {
  SpecialNames names;
  const auto known = [&](const char* name) {
    return has_piece(proto, name) ? std::optional<std::string>(name) : std::nullopt;
  };
  switch (family) {
    case Family::kAlbert:
      names.bos = names.cls = "[CLS]";
      names.eos = names.sep = "[SEP]";
      names.unk = "<unk>", names.pad = "<pad>", names.mask = "[MASK]";
      break;
    case Family::kXlnet:
      names.bos = "<s>", names.eos = "</s>", names.cls = "<cls>", names.sep = "<sep>";
      names.unk = "<unk>", names.pad = "<pad>", names.mask = "<mask>";
      break;
    case Family::kXlmRoberta:
      names.bos = names.cls = "<s>";
      names.eos = names.sep = "</s>";
      names.unk = "<unk>", names.pad = "<pad>", names.mask = "<mask>";
      break;
    case Family::kT5:
      names.eos = "</s>", names.unk = "<unk>", names.pad = "<pad>";
      break;
    case Family::kPlain:
      names.bos = known("<s>"), names.eos = known("</s>"), names.pad = known("<pad>");
      for (const SentencePieceProto::Piece& piece : proto.pieces) {
        if (piece.type == PieceType::kUnknown) names.unk = piece.text;
      }
      break;
  }
  return names;
}

SentencePieceTidying tidying_of(Family family, const TokenizerConfig& config) {
  SentencePieceTidying tidying;
  if (family != Family::kAlbert && family != Family::kXlnet) return tidying;
  tidying = {.remove_space = true,
             .join_quotes = true,
             .keep_accents = false,
             .do_lower_case = family == Family::kAlbert};
  if (config.json.is_null()) return tidying;
  const JsonFields fields(config.json, config.origin, "");
  const auto apply = [&](std::string_view key, bool& flag) {
    if (fields.find(key)) flag = fields.boolean(key);
  };
  apply("remove_space", tidying.remove_space);
  apply("keep_accents", tidying.keep_accents);
  apply("do_lower_case", tidying.do_lower_case);
  return tidying;
}

// The reference changes the library's own behaviour by these.
void refuse_other_settings(const TokenizerConfig& config) {
  if (config.json.is_null()) return;
  const JsonFields fields(config.json, config.origin, "");
  const Json* arguments = fields.find("sp_model_kwargs");
  if (arguments && !arguments->empty()) {
    fields.refuse("sp_model_kwargs", "absent or empty (not supported)");
  }
  if (fields.find("add_prefix_space") && !fields.boolean("add_prefix_space")) {
    fields.refuse("add_prefix_space", "true (false is not supported with a SentencePiece model)");
  }
}

// XLM-RoBERTa's ids are fairseq's: <s>, <pad>, </s> and <unk> come first, the mask last.
void count_like_fairseq(const SentencePieceProto& proto, std::string_view origin,
                        SentencePieceSpec& spec) {
  const auto is = [&](size_t id, std::string_view text) {
    return id < proto.pieces.size() && proto.pieces[id].text == text;
  };
  if (!is(0, "<unk>") || !is(1, "<s>") || !is(2, "</s>")) {
    fail(ErrorKind::kInput, "{}: XLM-RoBERTa's model begins with the pieces <unk>, <s>, </s>",
         origin);
  }
  spec.common.tokens = {"<s>", "<pad>", "</s>", "<unk>"};
  spec.ids = {3, 0, 2};
  for (size_t i = 3; i < proto.pieces.size(); ++i) {
    spec.ids.push_back(static_cast<int32_t>(spec.common.tokens.size()));
    spec.common.tokens.push_back(proto.pieces[i].text);
  }
  spec.common.tokens.push_back("<mask>");
}

// T5's sentinels lie behind the pieces, the highest first.
void add_extra_ids(const TokenizerConfig& config, SentencePieceSpec& spec) {
  int64_t count = 100;
  if (!config.json.is_null()) {
    const JsonFields fields(config.json, config.origin, "");
    if (fields.find("extra_ids")) count = fields.integer("extra_ids", 0, kMaxExtraIds);
  }
  for (int64_t i = count; i-- > 0;) {
    const std::string name = fmt::format("<extra_id_{}>", i);
    const auto& tokens = spec.common.tokens;
    if (std::find(tokens.begin(), tokens.end(), name) == tokens.end()) {
      spec.common.tokens.push_back(name);
    }
  }
}

// Control pieces, and those with a role, are recognised in a text; the library would not.
void add_special_tokens(const SentencePieceProto& proto, SentencePieceSpec& spec,
                        std::string_view origin) {
  const Vocabulary vocabulary(spec.common.tokens);
  std::vector<AddedToken>& added = spec.common.added;
  const auto find = [&](const std::string& name) {
    const auto known = std::find_if(added.begin(), added.end(),
                                    [&](const AddedToken& token) { return token.content == name; });
    return known != added.end() ? known->id : vocabulary.find(name);
  };
  const auto add = [&](const std::string& name, bool takes_space_before) {
    const int32_t id = find(name);
    const auto known = [id](const AddedToken& token) { return token.id == id; };
    if (id < 0 || std::any_of(added.begin(), added.end(), known)) return;
    added.push_back({.content = name, .id = id, .lstrip = takes_space_before, .special = true});
  };
  SpecialNames& names = spec.common.specials;
  if (names.mask) add(*names.mask, true);
  for (std::optional<std::string>* name :
       {&names.pad, &names.unk, &names.cls, &names.sep, &names.bos, &names.eos, &names.mask}) {
    if (!*name) continue;
    add(**name, false);
    if (find(**name) < 0) name->reset();
  }
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    if (piece.type == PieceType::kControl) add(piece.text, false);
  }
  for (const std::string& token : spec.common.tokens) {
    if (spec.family == Family::kT5 && token.starts_with("<extra_id_")) add(token, false);
    if (spec.family == Family::kXlnet && (token == "<eop>" || token == "<eod>")) add(token, false);
  }
  std::sort(added.begin(), added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });

  const auto require = [&](const std::optional<std::string>& name, std::string_view role) {
    if (name) return find(*name);
    fail(ErrorKind::kInput, "{}: the {} token is missing", origin, role);
  };
  TextEnds ends;
  if (spec.family != Family::kPlain && spec.family != Family::kT5) {
    ends = {require(names.cls, "classification"), require(names.sep, "separator")};
  }
  switch (spec.family) {
    case Family::kAlbert:
      spec.common.templates = bert_templates(ends);
      break;
    case Family::kXlnet:
      spec.common.templates = xlnet_templates(ends);
      break;
    case Family::kXlmRoberta:
      spec.common.templates = roberta_templates(ends);
      break;
    case Family::kT5:
      spec.common.templates = t5_templates(require(names.eos, "end"));
      break;
    case Family::kPlain:
      spec.common.templates = plain_templates();
      break;
  }
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string bytes, std::string_view origin,
                                               const TokenizerConfig& config) {
  SentencePieceModel model(std::move(bytes), origin);
  SentencePieceSpec spec;
  spec.family = family_of(model.proto(), config, origin);
  refuse_other_settings(config);
  spec.tidying = tidying_of(spec.family, config);
  spec.splits_number_commas = spec.family == Family::kAlbert || spec.family == Family::kXlnet;
  spec.common.specials = special_names(spec.family, model.proto());
  if (spec.family == Family::kXlmRoberta) {
    count_like_fairseq(model.proto(), origin, spec);
  } else {
    for (const SentencePieceProto::Piece& piece : model.proto().pieces) {
      spec.common.tokens.push_back(piece.text);
    }
  }
  if (spec.family == Family::kT5) add_extra_ids(config, spec);
  apply_tokenizer_config(config, spec);
  add_special_tokens(model.proto(), spec, origin);
  return std::make_unique<SentencePieceTokenizer>(std::move(spec), std::move(model), origin);
}

}  // namespace snug

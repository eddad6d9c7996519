#include "text/tokenizer_json.h"

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

// Beyond this, one "word" could make matching slow; the usual value is 100.
constexpr int64_t kMaxCharsPerWord = 10'000;

NormalizerOptions parse_normalizer(const JsonFields& document, std::string_view origin) {
  if (!document.find("normalizer")) return {false, false, false, false};
  const JsonFields fields = document.object("normalizer");
  const std::string type = fields.text("type");
  if (type != "BertNormalizer") {
    fail(ErrorKind::kInput, "{}: unsupported normalizer \"{}\" (supported: BertNormalizer)", origin,
         type);
  }
  fields.allow_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  NormalizerOptions options;
  options.clean_text = fields.boolean_or("clean_text", true);
  options.handle_chinese_chars = fields.boolean_or("handle_chinese_chars", true);
  options.lowercase = fields.boolean_or("lowercase", true);
  if (fields.find("strip_accents")) options.strip_accents = fields.boolean("strip_accents");
  return options;
}

void check_pre_tokenizer(const JsonFields& document, std::string_view origin) {
  if (!document.find("pre_tokenizer")) {
    fail(ErrorKind::kInput, "{}: pre_tokenizer is missing (supported: BertPreTokenizer)", origin);
  }
  const JsonFields fields = document.object("pre_tokenizer");
  const std::string type = fields.text("type");
  if (type != "BertPreTokenizer") {
    fail(ErrorKind::kInput, "{}: unsupported pre_tokenizer \"{}\" (supported: BertPreTokenizer)",
         origin, type);
  }
  fields.allow_only({"type"});
}

// Ids are the places 0 to n-1, each taken once; anything else would leave embedding rows without a
// token.
std::vector<std::string> parse_vocab_object(const JsonFields& model, std::string_view origin) {
  const JsonFields vocab = model.object("vocab");
  const size_t size = vocab.json().size();
  if (size == 0) fail(ErrorKind::kInput, "{}: model.vocab is empty", origin);
  if (size > kMaxVocabularySize) {
    fail(ErrorKind::kInput, "{}: model.vocab has {} tokens, more than the {} supported", origin,
         size, kMaxVocabularySize);
  }
  std::vector<std::string> tokens(size);
  std::vector<bool> taken(size);
  for (const auto& [token, id] : vocab.json().items()) {
    if (!id.is_number_integer() || id < 0 || id >= size) {
      fail(ErrorKind::kInput,
           "{}: token \"{}\" has id {}, expected an integer from 0 to {} ({} tokens, without gaps)",
           origin, token, id.dump(), size - 1, size);
    }
    const size_t place = id.get<size_t>();
    if (token.empty()) fail(ErrorKind::kInput, "{}: the token with id {} is empty", origin, place);
    if (taken[place]) {
      fail(ErrorKind::kInput, "{}: tokens \"{}\" and \"{}\" have the same id {}", origin,
           tokens[place], token, place);
    }
    taken[place] = true;
    tokens[place] = token;
  }
  return tokens;
}

void parse_model(const JsonFields& document, std::string_view origin, WordPieceSpec& spec) {
  const JsonFields model = document.object("model");
  // Early files do not state the type; WordPiece is then recognised by the field only it has.
  const bool untyped = !model.has("type") && model.has("max_input_chars_per_word");
  const std::string type = untyped ? "WordPiece" : model.text("type");
  if (type != "WordPiece") {
    fail(ErrorKind::kInput, "{}: unsupported model type \"{}\" (supported: WordPiece)", origin,
         type);
  }
  model.allow_only(
      {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  spec.unk_token = model.text("unk_token");
  spec.continuing_prefix = model.text("continuing_subword_prefix");
  spec.max_chars_per_word = model.integer("max_input_chars_per_word", 0, kMaxCharsPerWord);
  spec.tokens = parse_vocab_object(model, origin);
}

void parse_added_tokens(const JsonFields& document, std::string_view origin, WordPieceSpec& spec) {
  if (!document.find("added_tokens")) return;
  size_t index = 0;
  for (const Json& entry : document.array("added_tokens")) {
    const JsonFields fields(entry, origin, fmt::format("added_tokens[{}]", index++));
    fields.allow_only(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = parse_added_token(fields);
    token.id = static_cast<int32_t>(fields.integer("id", 0, 2 * kMaxVocabularySize));
    spec.added.push_back(std::move(token));
  }
  std::stable_sort(spec.added.begin(), spec.added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  const auto twice =
      std::adjacent_find(spec.added.begin(), spec.added.end(),
                         [](const AddedToken& a, const AddedToken& b) { return a.id == b.id; });
  if (twice != spec.added.end()) {
    fail(ErrorKind::kInput, "{}: added tokens \"{}\" and \"{}\" have the same id {}", origin,
         twice->content, std::next(twice)->content, twice->id);
  }
}

class TemplateParser {
 public:
  TemplateParser(const JsonFields& fields, std::string_view origin)
      : fields_(fields), origin_(origin) {}

  Template parse(std::string_view key, bool has_second) const {
    Template pieces;
    int firsts = 0, seconds = 0;
    size_t index = 0;
    for (const Json& entry : fields_.array(key)) {
      const JsonFields piece(entry, origin_, fmt::format("{}[{}]", fields_.name(key), index++));
      piece.allow_only({"Sequence", "SpecialToken"});
      pieces.push_back(parse_piece(piece));
      firsts += pieces.back().kind == TemplatePiece::Kind::kFirst;
      seconds += pieces.back().kind == TemplatePiece::Kind::kSecond;
    }
    if (firsts != 1 || seconds != int{has_second}) {
      fail(ErrorKind::kInput, "{}: {} must hold {} once each", origin_, fields_.name(key),
           has_second ? "the sequences A and B" : "the sequence A and not B");
    }
    return pieces;
  }

 private:
  TemplatePiece parse_piece(const JsonFields& piece) const {
    if (piece.json().size() != 1) {
      fail(ErrorKind::kInput, "{}: {}must be one Sequence or SpecialToken", origin_,
           piece.name(""));
    }
    const bool sequence = piece.has("Sequence");
    const JsonFields inner = piece.object(sequence ? "Sequence" : "SpecialToken");
    inner.allow_only({"id", "type_id"});
    const std::string id = inner.text("id");
    TemplatePiece result;
    result.type_id = static_cast<int32_t>(inner.integer("type_id", 0, 1'000));
    if (!sequence) {
      result.kind = TemplatePiece::Kind::kSpecial;
      result.ids = special_ids(id);
      return result;
    }
    if (id != "A" && id != "B") inner.refuse("id", "\"A\" or \"B\"");
    result.kind = id == "A" ? TemplatePiece::Kind::kFirst : TemplatePiece::Kind::kSecond;
    return result;
  }

  std::vector<int32_t> special_ids(const std::string& name) const {
    const JsonFields special = fields_.object("special_tokens").object(name);
    special.allow_only({"id", "ids", "tokens"});
    std::vector<int32_t> ids;
    for (const Json& id : special.array("ids")) {
      if (!id.is_number_integer() || id < 0 || id > 2 * kMaxVocabularySize)
        special.refuse("ids", "a list of token ids");
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

  const JsonFields& fields_;
  std::string_view origin_;
};

int32_t parse_named_id(const JsonFields& fields, std::string_view key) {
  const Json& pair = fields.array(key);
  if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number_integer() || pair[1] < 0 ||
      pair[1] > 2 * kMaxVocabularySize) {
    fields.refuse(key, "a token and its id");
  }
  return pair[1].get<int32_t>();
}

void parse_post_processor(const JsonFields& document, std::string_view origin,
                          WordPieceSpec& spec) {
  if (!document.find("post_processor")) {
    spec.single = {TemplatePiece{}};
    spec.pair = {TemplatePiece{}, {TemplatePiece::Kind::kSecond, 1, {}}};
    return;
  }
  const JsonFields fields = document.object("post_processor");
  const std::string type = fields.text("type");
  if (type == "BertProcessing") {
    fields.allow_only({"type", "sep", "cls"});
    set_bert_template(spec, parse_named_id(fields, "cls"), parse_named_id(fields, "sep"));
  } else if (type == "TemplateProcessing") {
    fields.allow_only({"type", "single", "pair", "special_tokens"});
    const TemplateParser parser(fields, origin);
    spec.single = parser.parse("single", false);
    spec.pair = parser.parse("pair", true);
  } else {
    fail(ErrorKind::kInput,
         "{}: unsupported post_processor \"{}\" (supported: TemplateProcessing, BertProcessing)",
         origin, type);
  }
  spec.post_processor = fields.json();
}

// Decoding is not done here, but the block is written back when saving, so it must be one that is
// known to fit.
void parse_decoder(const JsonFields& document, std::string_view origin, WordPieceSpec& spec) {
  if (!document.find("decoder")) return;
  const JsonFields fields = document.object("decoder");
  const std::string type = fields.text("type");
  if (type != "WordPiece") {
    fail(ErrorKind::kInput, "{}: unsupported decoder \"{}\" (supported: WordPiece)", origin, type);
  }
  fields.allow_only({"type", "prefix", "cleanup"});
  spec.decoder = fields.json();
}

}  // namespace

AddedToken parse_added_token(const JsonFields& fields) {
  AddedToken token;
  token.content = fields.text("content");
  token.single_word = fields.boolean_or("single_word", false);
  token.lstrip = fields.boolean_or("lstrip", false);
  token.rstrip = fields.boolean_or("rstrip", false);
  token.special = fields.boolean_or("special", false);
  token.normalized = fields.boolean_or("normalized", !token.special);
  return token;
}

void set_bert_template(WordPieceSpec& spec, int32_t cls_id, int32_t sep_id) {
  using Kind = TemplatePiece::Kind;
  spec.single = {
      {Kind::kSpecial, 0, {cls_id}}, {Kind::kFirst, 0, {}}, {Kind::kSpecial, 0, {sep_id}}};
  spec.pair = spec.single;
  spec.pair.push_back({Kind::kSecond, 1, {}});
  spec.pair.push_back({Kind::kSpecial, 1, {sep_id}});
}

WordPieceSpec parse_wordpiece_json(std::string_view text, std::string_view origin) {
  const Json json = parse_json(text, origin);
  const JsonFields document(json, origin, "");
  document.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                       "pre_tokenizer", "post_processor", "decoder", "model"});
  if (document.text("version") != "1.0") document.refuse("version", "\"1.0\"");
  WordPieceSpec spec;
  parse_model(document, origin,
              spec);  // first: another family is then refused as such, not by one of its parts
  spec.normalizer = parse_normalizer(document, origin);
  check_pre_tokenizer(document, origin);
  parse_added_tokens(document, origin, spec);
  parse_post_processor(document, origin, spec);
  parse_decoder(document, origin, spec);
  return spec;
}

}  // namespace snug

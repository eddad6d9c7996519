#include "text/post_processor.h"

#include "core/error.h"
#include "text/tokenizer_json.h"

namespace snug {
namespace {

using Kind = TemplatePiece::Kind;

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
      firsts += pieces.back().kind == Kind::kFirst;
      seconds += pieces.back().kind == Kind::kSecond;
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
      result.kind = Kind::kSpecial;
      result.ids = special_ids(id);
      return result;
    }
    if (id != "A" && id != "B") inner.refuse("id", "\"A\" or \"B\"");
    result.kind = id == "A" ? Kind::kFirst : Kind::kSecond;
    return result;
  }

  std::vector<int32_t> special_ids(const std::string& name) const {
    const JsonFields special = fields_.object("special_tokens").object(name);
    special.allow_only({"id", "ids", "tokens"});
    std::vector<int32_t> ids;
    for (const Json& id : special.array("ids")) {
      if (!id.is_number_integer() || id < 0 || id > 2 * kMaxVocabularySize) {
        special.refuse("ids", "a list of token ids");
      }
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

TemplatePiece special(int32_t id, int32_t type_id) { return {Kind::kSpecial, type_id, {id}}; }

}  // namespace

Templates plain_templates() {
  return {{{Kind::kFirst, 0, {}}}, {{Kind::kFirst, 0, {}}, {Kind::kSecond, 1, {}}}};
}

Templates bert_templates(const TextEnds& ends) {
  Templates result;
  result.single = {special(ends.cls, 0), {Kind::kFirst, 0, {}}, special(ends.sep, 0)};
  result.pair = result.single;
  result.pair.push_back({Kind::kSecond, 1, {}});
  result.pair.push_back(special(ends.sep, 1));
  return result;
}

Templates roberta_templates(const TextEnds& ends) {
  Templates result;
  result.single = {special(ends.cls, 0), {Kind::kFirst, 0, {}}, special(ends.sep, 0)};
  result.pair = result.single;
  result.pair.push_back(special(ends.sep, 0));
  result.pair.push_back({Kind::kSecond, 0, {}});
  result.pair.push_back(special(ends.sep, 0));
  return result;
}

Templates xlnet_templates(const TextEnds& ends) {
  Templates result;
  result.single = {{Kind::kFirst, 0, {}}, special(ends.sep, 0)};
  result.pair = result.single;
  result.pair.push_back({Kind::kSecond, 1, {}});
  result.pair.push_back(special(ends.sep, 1));
  for (Template* pieces : {&result.single, &result.pair}) pieces->push_back(special(ends.cls, 2));
  return result;
}

Templates t5_templates(int32_t end) {
  Templates result;
  result.single = {{Kind::kFirst, 0, {}}, special(end, 0)};
  result.pair = result.single;
  result.pair.push_back({Kind::kSecond, 0, {}});
  result.pair.push_back(special(end, 0));
  return result;
}

size_t count_specials(const Template& pieces) {
  size_t count = 0;
  for (const TemplatePiece& piece : pieces) count += piece.ids.size();
  return count;
}

void check_templates(const Templates& templates, int32_t vocab_size, std::string_view origin) {
  for (const Template* pieces : {&templates.single, &templates.pair}) {
    for (const TemplatePiece& piece : *pieces) {
      for (int32_t id : piece.ids) {
        if (id >= 0 && id < vocab_size) continue;
        fail(ErrorKind::kInput, "{}: the post-processor inserts id {}, but ids end at {}", origin,
             id, vocab_size - 1);
      }
    }
  }
}

TextEnds parse_text_ends(const JsonFields& fields) {
  return {parse_named_id(fields, "cls"), parse_named_id(fields, "sep")};
}

Templates parse_templates(const JsonFields& fields, std::string_view origin,
                          std::string_view also) {
  const std::string type = fields.text("type");
  if (type == "BertProcessing") {
    fields.allow_only({"type", "sep", "cls"});
    return bert_templates(parse_text_ends(fields));
  }
  if (type != "TemplateProcessing") {
    fail(ErrorKind::kInput,
         "{}: unsupported post_processor \"{}\" (supported: TemplateProcessing, BertProcessing{})",
         origin, type, also);
  }
  fields.allow_only({"type", "single", "pair", "special_tokens"});
  const TemplateParser parser(fields, origin);
  return {parser.parse("single", false), parser.parse("pair", true)};
}

}  // namespace snug

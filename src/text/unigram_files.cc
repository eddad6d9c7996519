// Unigram from the parts of tokenizer.json.
#include <cmath>

#include "core/error.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace snug {
namespace {

void parse_vocab(const JsonFields& model, std::string_view origin, UnigramSpec& spec) {
  const Json& vocab = model.array("vocab");
  if (vocab.empty()) fail(ErrorKind::kInput, "{}: model.vocab is empty", origin);
  if (vocab.size() > kMaxVocabularySize) {
    fail(ErrorKind::kInput, "{}: model.vocab has {} pieces, more than the {} supported", origin,
         vocab.size(), kMaxVocabularySize);
  }
  for (const Json& entry : vocab) {
    const size_t id = spec.common.tokens.size();
    const bool pair =
        entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
    if (!pair || !std::isfinite(entry[1].get<double>())) {
      fail(ErrorKind::kInput, "{}: model.vocab[{}] must be a piece and its score", origin, id);
    }
    spec.common.tokens.push_back(entry[0]);
    spec.model.scores.push_back(entry[1]);
    if (spec.common.tokens.back().empty()) {
      fail(ErrorKind::kInput, "{}: the piece with id {} is empty", origin, id);
    }
  }
}

void parse_model(const JsonFields& document, std::string_view origin, UnigramSpec& spec) {
  const JsonFields model = document.object("model");
  model.allow_only({"type", "unk_id", "vocab", "byte_fallback"});
  parse_vocab(model, origin, spec);
  spec.model.byte_fallback = model.boolean_or("byte_fallback", false);
  if (model.find("unk_id")) {
    spec.model.unk_id = static_cast<int32_t>(
        model.integer("unk_id", 0, static_cast<int64_t>(spec.common.tokens.size()) - 1));
  }
}

Metaspace parse_metaspace(const JsonFields& fields) {
  fields.allow_only(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  Metaspace metaspace;
  metaspace.replacement = fields.text("replacement");
  if (find_invalid_utf8(metaspace.replacement) != std::string_view::npos ||
      count_code_points(metaspace.replacement) != 1) {
    fields.refuse("replacement", "one character");
  }
  if (fields.has("str_rep") && fields.text("str_rep") != metaspace.replacement) {
    fields.refuse("str_rep", "the same as replacement");
  }
  if (fields.has("prepend_scheme")) {
    const std::string scheme = fields.text("prepend_scheme");
    if (scheme == "first") {
      metaspace.prepend = Metaspace::Prepend::kFirst;
    } else if (scheme == "never") {
      metaspace.prepend = Metaspace::Prepend::kNever;
    } else if (scheme != "always") {
      fields.refuse("prepend_scheme", "always, first or never");
    }
  }
  if (!fields.boolean_or("add_prefix_space", true) &&
      metaspace.prepend != Metaspace::Prepend::kNever) {
    fields.refuse("add_prefix_space", "true, since prepend_scheme is not never");
  }
  metaspace.split = fields.boolean_or("split", true);
  return metaspace;
}

void parse_splitter(const JsonFields& fields, std::string_view origin, UnigramModel& model) {
  const std::string type = fields.text("type");
  if (type == "WhitespaceSplit" && !model.splits_at_spaces && !model.metaspace) {
    fields.allow_only({"type"});
    model.splits_at_spaces = true;
  } else if (type == "Metaspace" && !model.metaspace) {
    model.metaspace = parse_metaspace(fields);
  } else {
    fail(ErrorKind::kInput,
         "{}: unsupported pre_tokenizer \"{}\" (supported for Unigram: WhitespaceSplit, Metaspace, "
         "each once in this order)",
         origin, type);
  }
}

void parse_pre_tokenizer(const JsonFields& document, std::string_view origin, UnigramModel& model) {
  if (!document.find("pre_tokenizer")) return;
  const JsonFields fields = document.object("pre_tokenizer");
  model.pre_tokenizer = fields.json();
  if (fields.text("type") != "Sequence") return parse_splitter(fields, origin, model);
  fields.allow_only({"type", "pretokenizers"});
  size_t index = 0;
  for (const Json& entry : fields.array("pretokenizers")) {
    const std::string name = fmt::format("{}[{}]", fields.name("pretokenizers"), index++);
    parse_splitter(JsonFields(entry, origin, name), origin, model);
  }
}

void parse_decoder(const JsonFields& document, std::string_view origin, UnigramSpec& spec) {
  if (!document.find("decoder")) return;
  const JsonFields fields = document.object("decoder");
  const std::string type = fields.text("type");
  if (type != "Metaspace") {
    fail(ErrorKind::kInput, "{}: unsupported decoder \"{}\" (supported for Unigram: Metaspace)",
         origin, type);
  }
  parse_metaspace(fields);
  spec.common.decoder = fields.json();
}

// By the tokens that are there: the families name theirs differently.
SpecialNames special_names(const UnigramSpec& spec) {
  const auto first_of = [&](std::initializer_list<const char*> names) {
    std::optional<std::string> found;
    for (const AddedToken& token : spec.common.added) {
      for (const char* name : names) {
        if (!found && token.special && token.content == name) found = token.content;
      }
    }
    return found;
  };
  SpecialNames names;
  names.pad = first_of({"<pad>", "[PAD]"});
  names.mask = first_of({"[MASK]", "<mask>"});
  names.bos = first_of({"<s>"});
  names.eos = first_of({"</s>"});
  names.cls = first_of({"[CLS]", "<cls>"});
  names.sep = first_of({"[SEP]", "<sep>"});
  if (!names.cls && !names.sep && names.bos && names.eos) {
    names.cls = names.bos, names.sep = names.eos;
  }
  if (spec.model.unk_id) names.unk = spec.common.tokens[*spec.model.unk_id];
  return names;
}

}  // namespace

UnigramSpec parse_unigram_json(const JsonFields& document, std::string_view origin) {
  UnigramSpec spec;
  parse_model(document, origin, spec);
  if (document.find("normalizer")) {
    const JsonFields fields = document.object("normalizer");
    spec.model.normalizer = fields.json();
  }
  parse_pre_tokenizer(document, origin, spec.model);
  spec.common.added = parse_added_tokens(document, origin);
  spec.common.templates = plain_templates();
  if (document.find("post_processor")) {
    const JsonFields fields = document.object("post_processor");
    spec.common.templates = parse_templates(fields, origin);
    spec.common.post_processor = fields.json();
  }
  parse_decoder(document, origin, spec);
  spec.common.specials = special_names(spec);
  return spec;
}

}  // namespace snug

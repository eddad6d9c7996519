// Byte-level BPE from the parts of tokenizer.json.
#include "core/error.h"
#include "text/bpe_files.h"
#include "text/tokenizer_json.h"

namespace snug {
namespace {

// A setting that must keep the value under which it does nothing.
void require_off(const JsonFields& fields, std::string_view key, bool off) {
  if (!off) fields.refuse(key, "off (not supported)");
}

void parse_model(const JsonFields& document, std::string_view origin, BpeSpec& spec) {
  const JsonFields model = document.object("model");
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                    "merges"});
  if (const Json* dropout = model.find("dropout")) require_off(model, "dropout", *dropout == 0);
  for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.find(key)) require_off(model, key, model.text(key).empty());
  }
  for (std::string_view key : {"byte_fallback", "ignore_merges"}) {
    if (model.find(key)) require_off(model, key, !model.boolean(key));
  }
  if (model.find("unk_token")) spec.model.unk_token = model.text("unk_token");
  spec.common.tokens = parse_vocab_object(model.object("vocab").json(), "model.vocab", origin);

  const MergeParser parser(spec.common.tokens, origin, "model.merges[{}]");
  for (const Json& entry : model.array("merges")) {
    const size_t index = spec.model.merges.size();
    const bool pair =
        entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string();
    if (!pair && !entry.is_string()) {
      fail(ErrorKind::kInput, "{}: model.merges[{}] must be \"left right\" or a pair of tokens",
           origin, index);
    }
    spec.model.merges.push_back(pair ? parser.parse(entry[0].get_ref<const std::string&>(),
                                                    entry[1].get_ref<const std::string&>(), index)
                                     : parser.parse(entry.get_ref<const std::string&>(), index));
  }
}

void refuse_normalizer(const JsonFields& document, std::string_view origin) {
  if (!document.find("normalizer")) return;
  fail(ErrorKind::kInput, "{}: unsupported normalizer \"{}\" (supported for BPE: none)", origin,
       document.object("normalizer").text("type"));
}

// A part that can only be of type ByteLevel.
JsonFields parse_byte_level(const JsonFields& document, std::string_view key,
                            std::string_view origin) {
  if (!document.find(key)) {
    fail(ErrorKind::kInput, "{}: {} is missing (supported: ByteLevel)", origin, key);
  }
  const JsonFields fields = document.object(key);
  const std::string type = fields.text("type");
  if (type != "ByteLevel") {
    fail(ErrorKind::kInput, "{}: unsupported {} \"{}\" (supported: ByteLevel)", origin, key, type);
  }
  fields.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  return fields;
}

void parse_trimming(const JsonFields& fields, std::string_view origin, BpeModel& model) {
  if (!fields.boolean_or("trim_offsets", true)) return;
  if (model.trim_offsets) {
    fail(ErrorKind::kInput, "{}: {} trims offsets that have been trimmed before (not supported)",
         origin, fields.name("trim_offsets"));
  }
  model.trim_offsets = true;
  model.trim_spares_prefix = fields.boolean_or("add_prefix_space", true);
}

// One processor; returns whether it puts special tokens around the texts.
bool parse_processor(const JsonFields& fields, std::string_view origin, BpeSpec& spec) {
  const std::string type = fields.text("type");
  if (type == "ByteLevel") {
    fields.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    parse_trimming(fields, origin, spec.model);
    return false;
  }
  if (type == "RobertaProcessing") {
    fields.allow_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    parse_trimming(fields, origin, spec.model);
    spec.common.templates = roberta_templates(parse_text_ends(fields));
    return true;
  }
  spec.common.templates =
      parse_templates(fields, origin, ", RobertaProcessing, ByteLevel, Sequence");
  return true;
}

// In a sequence, processors that trim must come before the one that adds tokens: behind it, the
// reference would take the first special token for the beginning of the text.
void parse_sequence(const JsonFields& sequence, std::string_view origin, BpeSpec& spec) {
  sequence.allow_only({"type", "processors"});
  bool wrapped = false;
  size_t index = 0;
  for (const Json& entry : sequence.array("processors")) {
    const JsonFields fields(entry, origin,
                            fmt::format("{}[{}]", sequence.name("processors"), index++));
    if (wrapped) {
      fail(ErrorKind::kInput, "{}: {} follows one that adds special tokens (not supported)", origin,
           fields.name("type"));
    }
    wrapped = parse_processor(fields, origin, spec);
  }
}

void parse_post_processor(const JsonFields& document, std::string_view origin, BpeSpec& spec) {
  spec.common.templates = plain_templates();
  if (!document.find("post_processor")) return;
  const JsonFields fields = document.object("post_processor");
  if (fields.text("type") == "Sequence") {
    parse_sequence(fields, origin, spec);
  } else {
    parse_processor(fields, origin, spec);
  }
  spec.common.post_processor = fields.json();
}

}  // namespace

BpeSpec parse_bpe_json(const JsonFields& document, std::string_view origin) {
  BpeSpec spec;
  parse_model(document, origin, spec);
  refuse_normalizer(document, origin);
  const JsonFields splitting = parse_byte_level(document, "pre_tokenizer", origin);
  spec.model.add_prefix_space = splitting.boolean_or("add_prefix_space", true);
  spec.model.use_regex = splitting.boolean_or("use_regex", true);
  spec.common.added = parse_added_tokens(document, origin);
  parse_post_processor(document, origin, spec);
  spec.common.decoder = document.find("decoder")
                            ? parse_byte_level(document, "decoder", origin).json()
                            : byte_level_decoder_json();
  spec.common.specials = special_names(family_of(spec.common.tokens, spec.common.added));
  return spec;
}

}  // namespace snug

#include "train/generation_config.h"

#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "text/json_fields.h"

namespace snug {
namespace {

constexpr const char* kFile = "generation_config.json";
constexpr uint64_t kMostId = std::numeric_limits<int32_t>::max();

// A setting that has an effect with any other value.
struct Neutral {
  const char* name;
  Json value;
};
const std::vector<Neutral>& neutral_settings() {
  static const std::vector<Neutral> settings = {{"assistant_early_exit", nullptr},
                                                {"bad_words_ids", nullptr},
                                                {"begin_suppress_tokens", nullptr},
                                                {"constraints", nullptr},
                                                {"diversity_penalty", 0.0},
                                                {"encoder_no_repeat_ngram_size", 0},
                                                {"epsilon_cutoff", 0.0},
                                                {"eta_cutoff", 0.0},
                                                {"exponential_decay_length_penalty", nullptr},
                                                {"force_words_ids", nullptr},
                                                {"forced_bos_token_id", nullptr},
                                                {"forced_eos_token_id", nullptr},
                                                {"guidance_scale", nullptr},
                                                {"max_length", 20},
                                                {"max_time", nullptr},
                                                {"min_length", 0},
                                                {"min_new_tokens", nullptr},
                                                {"min_p", nullptr},
                                                {"no_repeat_ngram_size", 0},
                                                {"num_beam_groups", 1},
                                                {"num_beams", 1},
                                                {"penalty_alpha", nullptr},
                                                {"sequence_bias", nullptr},
                                                {"suppress_tokens", nullptr},
                                                {"typical_p", 1.0},
                                                {"watermarking_config", nullptr}};
  return settings;
}

// Calls each() with the field, or with all in it if it is a list.
template <class Each>
void over_one_or_more(const JsonFields& fields, std::string_view key, const Each& each) {
  const Json* const value = fields.find(key);
  if (value == nullptr) return;
  if (!value->is_array()) return each(*value);
  for (const Json& element : *value) each(element);
}

}  // namespace

GenerationConfig parse_generation_config(std::string_view text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  const JsonFields fields(json, origin, "");
  const auto integer = [&](std::string_view key, int64_t low) {
    return fields.find(key) ? std::optional(fields.integer(key, low, kMostNewTokens))
                            : std::nullopt;
  };
  const auto number = [&](std::string_view key, const NumberRule& rule) {
    const Json* const value = fields.find(key);
    if (value == nullptr) return std::optional<double>();
    if (!value->is_number() || !rule.good(value->get<double>())) fields.refuse(key, rule.expected);
    return std::optional(value->get<double>());
  };
  GenerationConfig config;
  config.max_new_tokens = integer("max_new_tokens", 1);
  config.top_k = integer("top_k", 0);
  config.temperature = number("temperature", kTemperatureRule);
  config.top_p = number("top_p", kTopPRule);
  config.repetition_penalty = number("repetition_penalty", kPenaltyRule);
  if (fields.find("do_sample") && !fields.boolean("do_sample")) config.temperature = 0;
  over_one_or_more(fields, "eos_token_id", [&](const Json& id) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMostId) {
      fields.refuse("eos_token_id", "the number of a token or a list of them");
    }
    config.ends.push_back(id.get<int32_t>());
  });
  over_one_or_more(fields, "stop_strings", [&](const Json& stop) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      fields.refuse("stop_strings", "a text or a list of texts");
    }
    config.stops.push_back(stop.get<std::string>());
  });
  for (const Neutral& setting : neutral_settings()) {
    const Json* const value = fields.find(setting.name);
    if (value && *value != setting.value) config.not_followed.push_back(setting.name);
  }
  return config;
}

GenerationConfig read_generation_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kFile;
  if (!std::filesystem::exists(path)) return {};
  return parse_generation_config(read_small_file(path), path.string());
}

void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (!std::filesystem::exists(from / kFile)) return;
  write_file_atomically(to / kFile, read_small_file(from / kFile));
}

}  // namespace snug

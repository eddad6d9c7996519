// generation_config.json of a model's folder: how transformers would write with it. It stands in
// for what the user does not say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Longer than anybody waits for, and small enough that no sum of tokens and no count of bytes
// overflows.
inline constexpr int64_t kMostNewTokens = 1'000'000'000;

// What a number may be, whoever says it.
struct NumberRule {
  const char* expected;
  bool (*good)(double);
};
inline constexpr NumberRule kTemperatureRule = {"zero or more", [](double x) { return x >= 0; }};
inline constexpr NumberRule kTopPRule = {"above 0 and at most 1",
                                         [](double x) { return x > 0 && x <= 1; }};
inline constexpr NumberRule kPenaltyRule = {"a number above zero", [](double x) { return x > 0; }};

struct GenerationConfig {
  std::optional<int64_t> max_new_tokens, top_k;
  std::optional<double> temperature;  // 0 where "do_sample" is false
  std::optional<double> top_p, repetition_penalty;
  std::vector<int32_t> ends;       // tokens that end a text; empty: not said
  std::vector<std::string> stops;  // texts that do
  // Settings that change what transformers writes and are not known here.
  std::vector<std::string> not_followed;
};

// Errors (kInput) name `origin` and the field.
GenerationConfig parse_generation_config(std::string_view text, const std::string& origin);
// Says nothing where the folder has no such file.
GenerationConfig read_generation_config(const std::filesystem::path& folder);
// As it is, if it is there.
void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace snug

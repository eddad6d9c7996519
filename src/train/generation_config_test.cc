#include "train/generation_config.h"

#include <gtest/gtest.h>

#include "text/error_test_support.h"

namespace snug {
namespace {

GenerationConfig parsed(const std::string& text) {
  return parse_generation_config(text, "generation_config.json");
}
// As GPT-2's is.
TEST(GenerationConfig, SaysNothingAboutWhatIsNotThere) {
  const GenerationConfig config = parsed(
      R"({"_from_model_config": true, "bos_token_id": 50256, "eos_token_id": 50256,
          "transformers_version": "4.26.0.dev0"})");
  EXPECT_FALSE(config.max_new_tokens || config.temperature || config.top_k || config.top_p ||
               config.repetition_penalty);
  EXPECT_EQ(config.ends, std::vector<int32_t>{50256});
  EXPECT_TRUE(config.stops.empty() && config.not_followed.empty());
}

TEST(GenerationConfig, ReadsHowToWrite) {
  const GenerationConfig config = parsed(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1,
          "max_new_tokens": 64, "eos_token_id": [3, 7], "stop_strings": "END", "num_beams": 1})");
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_k, 40);
  EXPECT_EQ(config.top_p, 0.9);
  EXPECT_EQ(config.repetition_penalty, 1.1);
  EXPECT_EQ(config.max_new_tokens, 64);
  EXPECT_EQ(config.ends, (std::vector<int32_t>{3, 7}));
  EXPECT_EQ(config.stops, std::vector<std::string>{"END"});
  EXPECT_TRUE(config.not_followed.empty());
  EXPECT_EQ(parsed(R"({"stop_strings": ["a", "b"]})").stops, (std::vector<std::string>{"a", "b"}));
}

TEST(GenerationConfig, WithoutSamplingTheTemperatureDoesNotCount) {
  EXPECT_EQ(parsed(R"({"do_sample": false, "temperature": 0.6})").temperature, 0.0);
  EXPECT_EQ(parsed(R"({"do_sample": null, "temperature": null})").temperature, std::nullopt);
}

TEST(GenerationConfig, NamesWhatIsNotFollowed) {
  EXPECT_EQ(
      parsed(R"({"num_beams": 4, "no_repeat_ngram_size": 3, "typical_p": 1, "min_length": 0})")
          .not_followed,
      (std::vector<std::string>{"no_repeat_ngram_size", "num_beams"}));
}

TEST(GenerationConfig, RefusesWhatCannotBe) {
  for (const auto& [text, words] : {
           std::pair{R"({"temperature": -1})", "temperature must be zero or more, found -1"},
           {R"({"temperature": "hot"})", "temperature must be zero or more, found \"hot\""},
           {R"({"top_p": 1.5})", "top_p must be above 0 and at most 1"},
           {R"({"top_k": 2.5})", "top_k must be an integer"},
           {R"({"repetition_penalty": 0})", "repetition_penalty must be a number above zero"},
           {R"({"max_new_tokens": 0})", "max_new_tokens must be an integer from 1"},
           {R"({"do_sample": 1})", "do_sample must be true or false"},
           {R"({"eos_token_id": -1})", "eos_token_id must be the number of a token"},
           {R"({"eos_token_id": [1, 4294967296]})", "eos_token_id must be the number of a token"},
           {R"({"stop_strings": ["a", ""]})", "stop_strings must be a text"},
           {"[]", "must be an object"},
           {"{", "generation_config.json"},
       }) {
    const std::string said = error_of([&, &input = text] { parsed(input); });
    EXPECT_NE(said.find(words), std::string::npos) << text << "\n" << said;
  }
}

}  // namespace
}  // namespace snug

#include "optim/optimizer.h"

#include <bit>

#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "optim/adafactor.h"
#include "optim/adamw.h"
#include "optim/optim_test_util.h"
#include "optim/sgd.h"

namespace snug {
namespace {

constexpr Optimizer kAll[] = {Optimizer::kAdamW,     Optimizer::kAdamW8Bit,
                              Optimizer::kAdamWBf16, Optimizer::kAdafactor,
                              Optimizer::kSgd,       Optimizer::kSgdMomentum};

Parameter matrix(int64_t rows, int64_t cols) {
  return {
      .name = "matrix", .rows = rows, .cols = cols, .is_factor = true, .parts = {{"matrix", rows}}};
}
Parameter vector(int64_t size) {
  return {.name = "vector",
          .cols = size,
          .is_vector = true,
          .decays = false,
          .is_factor = true,
          .parts = {{"vector", size}}};
}
Parameter table(int64_t rows, int64_t cols) {
  return {.name = "table",
          .rows = rows,
          .cols = cols,
          .is_factor = true,
          .is_table = true,
          .parts = {{"table", rows}}};
}

TEST(Optimizer, Names) {
  for (const char* name : {"adamw", "adamw_torch", "adamw_hf"}) {
    EXPECT_EQ(parse_optimizer(name, 0.9), Optimizer::kAdamW);
  }
  for (const char* name : {"adamw_8bit", "adamw_bnb_8bit"}) {
    EXPECT_EQ(parse_optimizer(name, 0.9), Optimizer::kAdamW8Bit);
  }
  EXPECT_EQ(parse_optimizer("sgd", 0.9), Optimizer::kSgdMomentum);
  EXPECT_EQ(parse_optimizer("sgd", 0.0), Optimizer::kSgd);
  for (Optimizer optimizer : kAll) {
    const double momentum = optimizer == Optimizer::kSgd ? 0.0 : 0.9;
    EXPECT_EQ(parse_optimizer(optimizer_name(optimizer), momentum), optimizer);
  }
  EXPECT_THROW(parse_optimizer("lion", 0.9), Error);
}

TEST(Optimizer, StateIsAsSmallAsPromised) {
  const Parameter m = matrix(768, 3072), v = vector(3072), t = table(1000, 768);
  const size_t fp32 = size_t(m.size()) * 8;
  EXPECT_EQ(state_bytes(Optimizer::kAdamW, m), fp32);
  EXPECT_LT(state_bytes(Optimizer::kAdamW8Bit, m), fp32 / 4 + fp32 / 100);
  EXPECT_EQ(state_bytes(Optimizer::kAdamWBf16, m), fp32 / 2);
  EXPECT_LE(state_bytes(Optimizer::kAdafactor, m), (768 + 3072) * 4 + 256);
  EXPECT_EQ(state_bytes(Optimizer::kSgd, m), 0u);
  EXPECT_EQ(state_bytes(Optimizer::kSgdMomentum, m), fp32 / 2);
  for (Optimizer optimizer : {Optimizer::kAdamW8Bit, Optimizer::kAdamWBf16}) {
    for (const Parameter* p : {&v, &t}) {
      EXPECT_EQ(state_bytes(optimizer, *p), state_bytes(Optimizer::kAdamW, *p));
      EXPECT_FALSE(keeps_bfloat16(optimizer, *p));
    }
  }
  // Too small to be worth it.
  EXPECT_EQ(state_format(Optimizer::kAdamW8Bit, matrix(2, 768)), StateFormat::kMoments);
  EXPECT_TRUE(keeps_bfloat16(Optimizer::kAdamWBf16, m));
  for (Optimizer optimizer : kAll) {
    for (const Parameter& p : {m, v, t, matrix(3, 7), vector(5)}) {
      EXPECT_EQ(state_bytes(optimizer, p) % kTensorAlignment, 0u);
    }
  }
}

// Every optimizer moves every kind of parameter against its gradient, writes nothing outside of its
// state and knows which parameters decay.
TEST(Optimizer, UpdatesEveryKindOfParameter) {
  for (Optimizer optimizer : kAll) {
    for (const Parameter& p : {matrix(64, 80), matrix(3, 7), vector(100), table(50, 64)}) {
      SCOPED_TRACE(testing::Message()
                   << optimizer_name(optimizer) << ", " << p.name << " of " << p.size());
      const auto size = size_t(p.size());
      const bool half = keeps_bfloat16(optimizer, p);
      std::vector<float> w(size, 1.0f), g = normals(size, 1);
      std::vector<uint16_t> w16(size, float_to_bfloat16(1.0f));
      std::vector<std::byte> state(state_bytes(optimizer, p) + 64, std::byte(0));
      std::fill(state.end() - 64, state.end(), std::byte(0xab));
      void* const weights = half ? static_cast<void*>(w16.data()) : w.data();
      update_parameter(optimizer, p, 0, weights, g, state.data(),
                       {.learning_rate = 0.05, .weight_decay = 0.0});
      for (size_t i = 0; i < size; ++i) {
        const float after = half ? bfloat16_to_float(w16[i]) : w[i];
        if (std::abs(g[i]) > 0.5f) {
          EXPECT_LT((after - 1.0f) * g[i], 0.0f) << i;
        }
      }
      for (size_t i = state.size() - 64; i < state.size(); ++i) {
        EXPECT_EQ(state[i], std::byte(0xab));
      }
      // Decay alone.
      std::fill(g.begin(), g.end(), 0.0f);
      std::fill(w.begin(), w.end(), 1.0f);
      std::fill(w16.begin(), w16.end(), float_to_bfloat16(1.0f));
      std::fill(state.begin(), state.end(), std::byte(0));
      update_parameter(optimizer, p, 0, weights, g, state.data(),
                       {.learning_rate = 0.5, .weight_decay = 0.5});
      const float expected = p.decays ? 0.75f : 1.0f;
      for (size_t i = 0; i < size; ++i) {
        EXPECT_EQ(half ? bfloat16_to_float(w16[i]) : w[i], expected);
      }
    }
  }
}

// Query, key and value lie in one parameter and are three to Adafactor, as in Hugging Face's
// models.
TEST(Optimizer, AdafactorSeesTheTensorsOfFiles) {
  Parameter joined = matrix(24, 8);
  joined.parts = {{"query", 8}, {"key", 8}, {"value", 8}};
  std::vector<float> w = normals(192, 1), g = normals(192, 2);
  for (size_t i = 64; i < 128; ++i) g[i] *= 100.0f;
  std::vector<float> separate = w;
  std::vector<std::byte> state(state_bytes(Optimizer::kAdafactor, joined));
  const OptimizerStep step = {.learning_rate = 0.1, .weight_decay = 0.1};
  update_parameter(Optimizer::kAdafactor, joined, 0, w.data(), g, state.data(), step);
  for (size_t part = 0; part < 3; ++part) {
    std::vector<float> rows(8), columns(8);
    adafactor_matrix(std::span(separate).subspan(part * 64, 64),
                     std::span(g).subspan(part * 64, 64), rows, columns, step);
  }
  EXPECT_EQ(w, separate);
}

// The loss that each reaches on a small problem, with a rate that suits it, beside AdamW's.
TEST(Optimizer, AllLearn) {
  const Regression problem;
  const Parameter p = matrix(Regression::kClasses, Regression::kInputs);
  for (Optimizer optimizer : kAll) {
    std::vector<std::byte> state(state_bytes(optimizer, p));
    std::vector<uint16_t> w16(size_t(p.size()));
    const bool is_sgd = optimizer == Optimizer::kSgd || optimizer == Optimizer::kSgdMomentum;
    const double rate = is_sgd ? (optimizer == Optimizer::kSgd ? 50.0 : 5.0) : 0.03;
    const double loss = problem.train(
        150, rate, [&](std::vector<float>& w, const std::vector<float>& g, const OptimizerStep& s) {
          const bool half = keeps_bfloat16(optimizer, p);
          update_parameter(optimizer, p, 0, half ? static_cast<void*>(w16.data()) : w.data(), g,
                           state.data(), s);
          if (half) std::transform(w16.begin(), w16.end(), w.begin(), bfloat16_to_float);
        });
    EXPECT_LT(loss, 2.2) << optimizer_name(optimizer);  // from log(80) = 4.4
    printf("  %-12s loss %.4f\n", std::string(optimizer_name(optimizer)).c_str(), loss);
  }
}

}  // namespace
}  // namespace snug

// The optimizer step on the device against optim/optimizer.h, in an arena laid out as a run's.
#include "cuda/update.h"

#include <random>

#include "cuda/cuda_test_util.h"
#include "optim/adamw.h"
#include "optim/adamw_8bit.h"
#include "optim/adamw_bf16.h"
#include "optim/dynamic_tree.h"
#include "plan/gpu.h"

namespace snug::cuda {
namespace {

constexpr Optimizer kAll[] = {Optimizer::kAdamW,     Optimizer::kAdamW8Bit,
                              Optimizer::kAdamWBf16, Optimizer::kAdafactor,
                              Optimizer::kSgd,       Optimizer::kSgdMomentum};
const OptimizerStep kStep = {.learning_rate = 1e-2, .weight_decay = 0.1, .step = 3, .seed = 17};

Parameter matrix(int64_t rows, int64_t cols) {
  return {.name = "matrix", .rows = rows, .cols = cols, .is_factor = true, .parts = {}};
}
Parameter vector(int64_t size, bool is_factor) {
  return {.name = "vector",
          .cols = size,
          .is_vector = true,
          .decays = false,
          .is_factor = is_factor,
          .parts = {}};
}

// Matrices, vectors and tables around the sizes of chunks and blocks; one joined of three, one that
// is not trained.
ParameterTable small_table() {
  ParameterTable table = {matrix(1, 1),      matrix(3, 1),       matrix(64, 64),
                          matrix(4097, 1),   matrix(100, 100),   matrix(17, 251),
                          vector(5, true),   vector(16, false),  vector(8191, true),
                          vector(12, false), matrix(3 * 40, 64), matrix(90, 100)};
  table[10].parts = {{"query", 40}, {"key", 40}, {"value", 40}};
  table[11].trained = false;
  table.push_back({.name = "table", .rows = 31, .cols = 70, .is_table = true, .parts = {}});
  table.push_back({.name = "tied",
                   .rows = 61,
                   .cols = 72,
                   .is_factor = true,
                   .is_table = true,
                   .padded_rows = 64,
                   .parts = {}});
  return table;
}

// A run's arena on the host: NaN everywhere but for weights, gradients and a state that two steps
// have made.
class Arena {
 public:
  Arena(Optimizer optimizer, DType compute, ParameterTable parameters, uint64_t seed,
        bool only_pass = false)
      : table(std::move(parameters)), facts{.optimizer = optimizer, .compute = compute} {
    layout =
        lay_out_arena(table, {.compute = compute, .optimizer = optimizer, .only_pass = only_pass});
    bytes.assign(layout.bytes, std::byte(0xff));
    std::memset(bytes.data() + layout.states.offset, 0, layout.states.bytes);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < table.size(); ++i) {
      if (!table[i].trained) continue;
      std::vector<float> weights(size_t(table[i].size()));
      for (float& weight : weights) weight = normal(random);
      if (half(i)) {
        std::ranges::transform(weights, halves(layout.parameters[i].copy), float_to_bfloat16);
      } else {
        set_weights(i, weights);
      }
      for (int64_t step = 1; step < kStep.step; ++step) {
        draw_gradient(i, random);
        update(i, {.learning_rate = 1e-2, .step = step});
      }
      draw_gradient(i, random);
    }
  }

  ParameterTable table;
  UpdateFacts facts;
  ArenaLayout layout;
  std::vector<std::byte> bytes;

  float* floats(size_t offset) { return reinterpret_cast<float*>(bytes.data() + offset); }
  uint16_t* halves(size_t offset) { return reinterpret_cast<uint16_t*>(bytes.data() + offset); }
  bool half(size_t i) const { return keeps_bfloat16(facts.optimizer, table[i]); }
  // In fp32, of what is not half().
  std::vector<float> weights(size_t i) {
    const ParameterPlace& place = layout.parameters[i];
    std::vector<float> result(size_t(table[i].size()));
    for (size_t n = 0; n < result.size(); ++n) {
      result[n] =
          place.split
              ? std::bit_cast<float>(join_float({halves(place.copy)[n], halves(place.weight)[n]}))
              : floats(place.weight)[n];
    }
    return result;
  }
  void set_weights(size_t i, const std::vector<float>& weights) {
    const ParameterPlace& place = layout.parameters[i];
    for (size_t n = 0; n < weights.size(); ++n) {
      if (place.split) {
        const FloatHalves parts = split_float(std::bit_cast<uint32_t>(weights[n]));
        halves(place.copy)[n] = parts.upper, halves(place.weight)[n] = parts.lower;
      } else {
        floats(place.weight)[n] = weights[n];
      }
    }
  }
  // As an update takes it.
  std::vector<float> gradient(size_t i) {
    const ParameterPlace& place = layout.parameters[i];
    std::vector<float> result(size_t(table[i].size()));
    if (place.gradient_form == GradientForm::kRounded) {
      const uint16_t* const from = halves(place.gradient);
      std::transform(from, from + result.size(), result.begin(), bfloat16_to_float);
    } else {
      std::copy_n(floats(place.gradient), result.size(), result.begin());
    }
    if (place.gradient_form == GradientForm::kRounds) {
      for (float& g : result) g = bfloat16_to_float(float_to_bfloat16(g));
    }
    return result;
  }
  void set_gradient(size_t i, const std::vector<float>& values) {
    const ParameterPlace& place = layout.parameters[i];
    if (place.gradient_form == GradientForm::kRounded) {
      std::ranges::transform(values, halves(place.gradient), float_to_bfloat16);
    } else {
      std::ranges::copy(values, floats(place.gradient));
    }
  }
  // What an update leaves of it, where the next step does not overwrite it.
  void clear_gradient(size_t i) {
    if (layout.only_pass && table[i].is_factor && !table[i].is_vector) return;
    set_gradient(i, std::vector<float>(size_t(table[i].size())));
  }
  std::byte* state(size_t i) {
    const size_t offset = layout.parameters[i].state;
    return offset == kNoOffset ? nullptr : bytes.data() + offset;
  }
  // What the CPU makes of one parameter.
  void update(size_t i, const OptimizerStep& step) {
    if (half(i)) {
      update_parameter(facts.optimizer, table[i], i, halves(layout.parameters[i].copy), gradient(i),
                       state(i), step);
    } else {
      std::vector<float> exact = weights(i);
      update_parameter(facts.optimizer, table[i], i, exact.data(), gradient(i), state(i), step);
      set_weights(i, exact);
    }
  }
  double squares() {
    double sum = 0.0;
    for (size_t i = 0; i < table.size(); ++i) {
      sum += table[i].trained ? sum_of_squares(gradient(i)) : 0.0;
    }
    return sum;
  }

 private:
  void draw_gradient(size_t i, std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    std::vector<float> values(size_t(table[i].size()));
    for (float& g : values) {
      g = normal(random) * std::exp2(float(random() % 12) - 11.0f);  // over some decades
    }
    set_gradient(i, values);
  }
};

struct Outcome {
  std::vector<std::byte> bytes;
  UpdateResult result;
  double loss_after = 0;
};

// seen: UpdateArguments::seen, before and after; null: there is none.
Outcome run(const Arena& a, const UpdateFactors& factors, double loss, std::vector<uint8_t>* seen) {
  const std::vector<UpdateChunk> chunks = update_chunks(a.table, a.layout, a.facts);
  const std::vector<UpdateTensor> tensors = update_tensors(a.table, a.layout, a.facts);
  EXPECT_EQ(chunks.size(), update_chunk_count(a.table));
  const DeviceBytes arena(a.bytes), on_device(bytes_of(chunks));
  const DeviceBytes factors_there(bytes_of(std::vector<UpdateFactors>{factors})),
      losses(bytes_of(Doubles{loss}));
  const DeviceBytes result(sizeof(UpdateResult)), partials(kNormPartials * sizeof(double));
  const DeviceBytes flags(seen ? bytes_of(*seen) : std::vector<std::byte>(1));
  launch_update({.optimizer = a.facts.optimizer,
                 .arena = arena.data<std::byte>(),
                 .copy_dtype = a.facts.compute,
                 .chunks = on_device.data<UpdateChunk>(),
                 .chunk_count = int64_t(chunks.size()),
                 .tensors = tensors,
                 .factors = factors_there.data<UpdateFactors>(),
                 .loss = losses.data<double>(),
                 .result = result.data<UpdateResult>(),
                 .partials = partials.data<double>(),
                 .seen = seen ? flags.data<uint8_t>() : nullptr},
                nullptr);
  SNUG_CUDA(cudaDeviceSynchronize());
  for (const DeviceBytes* bytes : {&arena, &losses, &result, &partials, &flags}) {
    EXPECT_TRUE(bytes->guards_intact());
  }
  if (seen) *seen = values_of<uint8_t>(flags.download());
  return {arena.download(), values_of<UpdateResult>(result.download())[0],
          values_of<double>(losses.download())[0]};
}

// With moments that are not known to be zero.
Outcome run(const Arena& a, const UpdateFactors& factors, double loss) {
  std::vector<uint8_t> seen(update_chunk_count(a.table) * kSeenBytes, 0xff);
  return run(a, factors, loss, &seen);
}

// Compares parameter by parameter and forgets what was compared: what is left must be what it was.
class Comparison {
 public:
  Comparison(Arena& expected, Arena& got) : expected_(expected), got_(got) {}

  void parameter(size_t i) {
    const Parameter& p = expected_.table[i];
    const ParameterPlace& place = expected_.layout.parameters[i];
    const auto size = size_t(p.size());
    SCOPED_TRACE(testing::Message()
                 << "parameter " << i << ", " << p.name << " " << p.rows << " x " << p.cols);
    if (expected_.half(i)) {
      halves(place.copy, size);
    } else {
      weights(i, expected_.facts.optimizer == Optimizer::kAdafactor ? 1.0 : 1e-2);
      if (place.copy != kNoOffset && !place.split) copy(i);
    }
    expected_.clear_gradient(i);
    state(i);
  }

  // Gradients, padding, parameters that are not trained.
  void rest() { EXPECT_TRUE(expected_.bytes == got_.bytes); }

 private:
  void forget(size_t offset, size_t bytes) {
    std::memcpy(expected_.bytes.data() + offset, got_.bytes.data() + offset, bytes);
  }
  // A compiler may fuse other products than the CPU does, and sums may be in another order: units
  // in the last place of terms about as large as `scale`.
  static void near(std::span<const float> got, std::span<const float> want, double scale) {
    for (size_t n = 0; n < want.size(); ++n) {
      const double tolerance = 4.0 * kEps * std::abs(want[n]) + 32.0 * kEps * scale;
      ASSERT_NEAR(got[n], want[n], tolerance) << n;
    }
  }
  void floats(size_t offset, size_t count, double scale) {
    near({got_.floats(offset), count}, {expected_.floats(offset), count}, scale);
    forget(offset, count * sizeof(float));
  }
  void weights(size_t i, double scale) {
    const std::vector<float> got = got_.weights(i);
    near(got, expected_.weights(i), scale);
    expected_.set_weights(i, got);
  }
  // The same draws; where the fp32 values differ in their last bit, one in thousands rounds the
  // other way.
  void halves(size_t offset, size_t count) {
    size_t different = 0;
    for (size_t n = 0; n < count; ++n) {
      const uint16_t want = expected_.halves(offset)[n], have = got_.halves(offset)[n];
      ASSERT_LE(std::abs(int(want) - int(have)), 1) << n;
      different += want != have;
    }
    EXPECT_LE(different, 2 + count / 200);
    forget(offset, count * 2);
  }
  // The device's own weights, rounded.
  void copy(size_t i) {
    const ParameterPlace& place = expected_.layout.parameters[i];
    const DType dtype = expected_.facts.compute;
    const auto size = size_t(expected_.table[i].size());
    const float* const w = got_.floats(place.weight);
    const std::vector<std::byte> rounded = encoded(Doubles(w, w + size), dtype);
    std::memcpy(expected_.bytes.data() + place.copy, rounded.data(), rounded.size());
  }
  void codes(size_t offset, size_t count, int sign) {
    size_t different = 0;
    for (size_t n = 0; n < count; ++n) {
      const auto value = [&](Arena& a) {
        const int code = int(uint8_t(a.bytes[offset + n]));
        return code & sign ? -(code - sign) : code;
      };
      ASSERT_LE(std::abs(value(expected_) - value(got_)), 1) << n;
      different += value(expected_) != value(got_);
    }
    EXPECT_LE(different, 2 + count / 200);
    forget(offset, count);
  }
  void state(size_t i) {
    const Parameter& p = expected_.table[i];
    const size_t state = expected_.layout.parameters[i].state;
    const auto size = size_t(p.size());
    switch (state_format(expected_.facts.optimizer, p)) {
      case StateFormat::kNone:
        return;
      case StateFormat::kMomentum:
        return floats(state, size, 1.0);
      case StateFormat::kMoments:
        floats(state, size, 1e-1);
        return floats(state + moment_bytes(p), size, 1e-3);
      case StateFormat::kHalfMoments:
        halves(state, size);
        return halves(state + half_moment_layout(p.size()).second, size);
      case StateFormat::kEightBit: {
        const EightBitLayout layout = eight_bit_layout(p.size());
        const size_t blocks = (size + 255) / 256;
        codes(state, size, 128);
        codes(state + layout.second, size, 256);
        floats(state + layout.first_scales, blocks, 1e-1);
        return floats(state + layout.second_scales, blocks, 1e-1);
      }
      case StateFormat::kFactored:
        for (size_t n = 0; n < adafactor_part_count(p); ++n) {
          const AdafactorPart part = adafactor_part(p, n);
          floats(state + part.state, size_t(part.rows + part.cols), 1.0);
        }
    }
  }

  Arena &expected_, &got_;
};

void check(Arena a, double max_norm, double gradient_scale) {
  if (leaves_out_case()) return;
  SCOPED_TRACE(testing::Message() << optimizer_name(a.facts.optimizer) << ", "
                                  << dtype_name(a.facts.compute) << ", max_norm " << max_norm
                                  << ", scale " << gradient_scale);
  OptimizerStep step = kStep;
  step.gradient_scale = gradient_scale;
  const UpdateFactors factors = update_factors(a.facts.optimizer, step, max_norm);
  const double norm = std::sqrt(a.squares()) * gradient_scale;
  const Outcome got = run(a, factors, 2.5);
  EXPECT_TRUE(got.bytes == run(a, factors, 2.5).bytes) << "two runs differ";
  EXPECT_EQ(got.result.loss, 2.5);
  EXPECT_EQ(got.loss_after, 0.0);
  EXPECT_EQ(got.result.applied, 1);
  EXPECT_NEAR(got.result.gradient_norm, norm, 1e-6 * norm);
  const double clip = max_norm > 0.0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  EXPECT_NEAR(got.result.clip, clip, 1e-6);
  step.gradient_scale = double(factors.gradient_scale * got.result.clip);
  Arena there = a;
  there.bytes = got.bytes;
  Comparison comparison(a, there);
  for (size_t i = 0; i < a.table.size(); ++i) {
    if (!a.table[i].trained) continue;
    a.update(i, step);
    comparison.parameter(i);
  }
  comparison.rest();
}

TEST(CudaUpdate, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  for (Optimizer optimizer : kAll) {
    for (DType compute : {DType::kBF16, DType::kF16, DType::kF32}) {
      check(Arena(optimizer, compute, small_table(), 1), 0.0, 1.0);
    }
  }
}

TEST(CudaUpdate, Clips) {
  SNUG_NEEDS_GPU();
  for (Optimizer optimizer : kAll) {
    check(Arena(optimizer, DType::kBF16, small_table(), 2), 1.0, 1.0);
    check(Arena(optimizer, DType::kBF16, small_table(), 2), 1e6, 1.0);
    check(Arena(optimizer, DType::kF16, small_table(), 2), 1.0, 1.0 / 1024.0);
  }
}

// In bf16 those of matrices lie there rounded.
TEST(CudaUpdate, KeepsGradientsThatTheNextStepOverwrites) {
  SNUG_NEEDS_GPU();
  for (Optimizer optimizer : kAll) {
    for (DType compute : {DType::kBF16, DType::kF16, DType::kF32}) {
      check(Arena(optimizer, compute, small_table(), 3, true), 1.0, 1.0);
    }
  }
}

// Rows without a gradient, shorter and longer than what a warp reads at a time, and single elements
// in them.
TEST(CudaUpdate, ReadsOnlyGradientsThatAreNotZero) {
  SNUG_NEEDS_GPU();
  for (Optimizer optimizer : kAll) {
    for (const bool only_pass : {false, true}) {
      ParameterTable table = small_table();
      table.push_back({.name = "words", .rows = 301, .cols = 768, .is_table = true, .parts = {}});
      Arena a(optimizer, DType::kBF16, table, 6, only_pass);
      std::mt19937_64 random(7);
      for (size_t i = 0; i < table.size(); ++i) {
        if (!table[i].trained) continue;
        std::vector<float> g = a.gradient(i);
        for (size_t begin = 0, length = 0; begin < g.size(); begin += length) {
          length = std::min<size_t>(1 + random() % 3000, g.size() - begin);
          if (random() % 4 != 0) std::ranges::fill(std::span(g).subspan(begin, length), 0.0f);
          if (random() % 4 == 0) g[begin] = random() % 2 == 0 ? -0.0f : 1e-30f;
        }
        a.set_gradient(i, g);
      }
      const UpdateFactors factors = update_factors(optimizer, kStep, 1.0);
      EXPECT_TRUE(run(a, factors, 2.5).bytes == run(a, factors, 2.5, nullptr).bytes)
          << optimizer_name(optimizer);
      if (optimizer == Optimizer::kAdamW) check(std::move(a), 1.0, 1.0);
    }
  }
}

// From moments of zero on, what has never had a gradient is left alone: the bits are the same as
// where all is read and written, step by step, whether weights decay or not.
TEST(CudaUpdate, LeavesAloneWhatHasNeverHadAGradient) {
  SNUG_NEEDS_GPU();
  for (Optimizer optimizer : {Optimizer::kAdamW, Optimizer::kAdamW8Bit, Optimizer::kAdamWBf16}) {
    for (const double decay : {0.0, 0.1}) {
      Arena some(optimizer, DType::kBF16, small_table(), 8);
      some.bytes = run(some, update_factors(optimizer, kStep, 1.0), 2.5).bytes;  // makes copies
      std::memset(some.bytes.data() + some.layout.states.offset, 0, some.layout.states.bytes);
      Arena all = some;
      std::vector<uint8_t> seen(update_chunk_count(some.table) * kSeenBytes);
      std::mt19937_64 random(9);
      for (int64_t step = 1; step <= 4; ++step) {
        for (size_t i = 0; i < some.table.size(); ++i) {
          if (!some.table[i].trained) continue;
          // Stretches that begin at the same places in all steps, most of them without gradients.
          std::vector<float> g(size_t(some.table[i].size()));
          for (size_t begin = 0; begin < g.size(); begin += 500) {
            if (random() % 4 != 0) continue;
            const size_t end = std::min(begin + 500, g.size());
            for (size_t n = begin; n < end; ++n) g[n] = float(int(random() % 2001) - 1000) * 1e-3f;
          }
          some.set_gradient(i, g), all.set_gradient(i, g);
        }
        const UpdateFactors factors = update_factors(
            optimizer, {.learning_rate = 1e-2, .weight_decay = decay, .step = step}, 1.0);
        some.bytes = run(some, factors, 2.5, &seen).bytes;
        all.bytes = run(all, factors, 2.5, nullptr).bytes;
        ASSERT_TRUE(some.bytes == all.bytes) << optimizer_name(optimizer) << " " << step;
      }
      EXPECT_TRUE(std::ranges::any_of(seen, [](uint8_t byte) { return byte >> 4 != 0; }));
      EXPECT_TRUE(std::ranges::any_of(seen, [](uint8_t byte) { return byte >> 4 != 15; }))
          << "nothing was left alone";
    }
  }
}

// More chunks than blocks that sum squares, more rows than blocks that apply.
TEST(CudaUpdate, MatchesTheCpuForManyParameters) {
  SNUG_NEEDS_GPU();
  for (Optimizer optimizer : kAll) {
    ParameterTable table(1500, vector(77, true));
    table.push_back(matrix(3001, 1000));
    check(Arena(optimizer, DType::kBF16, table, 4), 1.0, 1.0);
  }
}

TEST(CudaUpdate, AppliesNothingThatIsNotFinite) {
  SNUG_NEEDS_GPU();
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (Optimizer optimizer : kAll) {
    for (float bad : {nan, infinity, -infinity, 1.0f}) {
      for (const bool only_pass : {false, true}) {
        Arena a(optimizer, DType::kBF16, small_table(), 5, only_pass);
        std::vector<float> g = a.gradient(4);
        g[9999] = bad;
        a.set_gradient(4, g);
        const Outcome got =
            run(a, update_factors(optimizer, kStep, 1.0), bad == 1.0f ? double(nan) : 2.0);
        EXPECT_EQ(got.result.applied, 0);
        EXPECT_EQ(got.loss_after, 0.0);
        for (size_t i = 0; i < a.table.size(); ++i) {
          if (a.table[i].trained) a.clear_gradient(i);
        }
        EXPECT_TRUE(got.bytes == a.bytes) << optimizer_name(optimizer);
      }
    }
  }
}

// A model like BERT-base; nothing is asserted.
TEST(CudaUpdate, SpeedIsPrinted) {
  SNUG_NEEDS_GPU();
  ParameterTable table = {
      {.name = "table", .rows = 30522, .cols = 768, .is_table = true, .parts = {}}};
  for (int layer = 0; layer < 12; ++layer) {
    for (const Parameter& p :
         {matrix(2304, 768), matrix(768, 768), matrix(3072, 768), matrix(768, 3072),
          vector(2304, true), vector(768, true), vector(3072, true), vector(768, true),
          vector(768, false), vector(768, false)}) {
      table.push_back(p);
    }
  }
  for (Optimizer optimizer : kAll) {
    const UpdateFacts facts{.optimizer = optimizer, .compute = DType::kBF16};
    const ArenaLayout layout =
        lay_out_arena(table, {.compute = DType::kBF16, .optimizer = optimizer});
    const std::vector<UpdateChunk> list = update_chunks(table, layout, facts);
    const std::vector<UpdateTensor> tensors = update_tensors(table, layout, facts);
    const DeviceBytes arena(layout.bytes), chunks(bytes_of(list)), loss(8),
        result(sizeof(UpdateResult)), partials(kNormPartials * 8);
    const DeviceBytes seen(list.size() * kSeenBytes);
    fill_device(arena.data(), 0, arena.size());
    fill_device(loss.data(), 0, loss.size());
    const DeviceBytes factors(
        bytes_of(std::vector<UpdateFactors>{update_factors(optimizer, kStep, 1.0)}));
    const UpdateArguments arguments = {.optimizer = optimizer,
                                       .arena = arena.data<std::byte>(),
                                       .copy_dtype = DType::kBF16,
                                       .chunks = chunks.data<UpdateChunk>(),
                                       .chunk_count = int64_t(list.size()),
                                       .tensors = tensors,
                                       .factors = factors.data<UpdateFactors>(),
                                       .loss = loss.data<double>(),
                                       .result = result.data<UpdateResult>(),
                                       .partials = partials.data<double>()};
    UpdateArguments sparse = arguments;
    sparse.seen = seen.data<uint8_t>();
    // The norm reads gradients; the update reads and writes weights, gradients and state, and
    // writes copies.
    const double bytes = double(3 * layout.gradients.bytes + 2 * layout.states.bytes +
                                2 * layout.trained.bytes + layout.copies.bytes);
    print_speed(std::string(optimizer_name(optimizer)) + " over 109M parameters",
                median_milliseconds([&] { launch_update(arguments, nullptr); }), bytes);
    print_speed("  where all gradients are zero",
                median_milliseconds([&] { launch_update(sparse, nullptr); }), bytes);
  }
}

}  // namespace
}  // namespace snug::cuda

// The element-wise kernels against the CPU operators.
#include <numeric>

#include "cuda/cuda_test_util.h"
#include "ops/activation_reference.h"
#include "ops/convert.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/end_token.h"
#include "ops/linear.h"
#include "ops/mean_pool.h"
#include "ops/residual_norm.h"

namespace snug::cuda {
namespace {

const std::vector<std::vector<int>> kBatches = {{1}, {2, 1}, {100, 20, 7}, {150, 100, 49, 1}};

TensorDesc parameter(int64_t rows, int64_t cols) { return {DType::kF32, Rows::kFixed, rows, cols}; }

// Calls f for each type and some combinations of width, batch and dropout.
void on_cases(
    const std::vector<int64_t>& widths,
    const std::function<void(CudaCase&, DType, int64_t width, float dropout, uint64_t seed)>& f) {
  uint64_t seed = 1;
  for (DType dtype : types_here()) {
    for (int64_t width : widths) {
      for (float dropout : {0.0f, 0.1f}) {
        const PackedBatch packed(kBatches[(seed / 2) % kBatches.size()], seed);
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", width " << width << ", tokens "
                     << packed.batch.dims.tokens << ", dropout " << dropout << ", seed " << seed);
        CudaCase c(packed, bucket_of(packed.batch, seed), seed);
        f(c, dtype, width, dropout, seed);
        ++seed;
      }
    }
  }
}

// The same for more rows than kernels that walk rows have in hand at once.
void on_many_rows(
    const std::vector<int64_t>& widths,
    const std::function<void(CudaCase&, DType, int64_t width, float dropout, uint64_t seed)>& f) {
  const PackedBatch packed(std::vector<int>(23, 131), 1);
  uint64_t seed = 1;
  for (DType dtype : types_here()) {
    for (int64_t width : widths) {
      SCOPED_TRACE(testing::Message()
                   << dtype_name(dtype) << ", width " << width << ", seed " << seed);
      CudaCase c(packed, bucket_of(packed.batch, seed), seed);
      f(c, dtype, width, seed % 2 ? 0.1f : 0.0f, seed);
      ++seed;
    }
  }
}

const std::vector<int64_t> kManyRowsWidths = {96, 768, 1024, 77};
const std::vector<int64_t> kWidths = {1,    7,    17,   64,   120,  512,  768,
                                      1000, 1024, 1600, 2000, 4095, 4096, 5000};

// Mean and 1 / deviation of rows.
Doubles stats_of(const Doubles& rows, int64_t cols, double eps) {
  Doubles stats;
  for (size_t i = 0; i < rows.size(); i += size_t(cols)) {
    double mean = 0.0, variance = 0.0;
    for (size_t c = 0; c < size_t(cols); ++c) mean += rows[i + c] / double(cols);
    for (size_t c = 0; c < size_t(cols); ++c) {
      variance += std::pow(rows[i + c] - mean, 2) / double(cols);
    }
    stats.insert(stats.end(), {mean, 1.0 / std::sqrt(variance + eps)});
  }
  return stats;
}

// The gradient of a row of one element is what rounding leaves of a difference, enlarged by its 1 /
// deviation of 300.
double error_at(int64_t width) { return width == 1 ? 1e-2 : 0.0; }

// Of every third case one row for each sequence.
Rows norm_rows(uint64_t seed) { return seed % 3 == 1 ? Rows::kSequences : Rows::kTokens; }

void check_residual_norm(CudaCase& c, DType dtype, int64_t width, float dropout, uint64_t seed) {
  const Rows rows_are = norm_rows(seed);
  const auto rows = [&](DType type, int64_t cols) { return TensorDesc{type, rows_are, 1, cols}; };
  const ResidualNorm op(
      {.hidden = width, .eps = 1e-5f, .dropout = dropout, .site = 4, .rows = rows_are});
  const bool keeps = seed % 5 != 0;
  c.dying = seed % 2;  // x
  // The sum is rounded before it is normalised, which enlarges it where few elements deviate
  // little.
  c.check(op,
          {c.random(rows(dtype, width)), c.random(rows(dtype, width)),
           c.random(parameter(1, width), 0.3, 1.0), c.random(parameter(1, width))},
          {c.output(rows(dtype, width)), keeps ? c.output(rows(dtype, width)) : kNoValue,
           keeps ? c.output(rows(DType::kF32, 2)) : kNoValue},
          width < 8 ? 16.0 : 4.0, dtype_error(dtype));
}

TEST(CudaResidualNorm, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  on_cases(kWidths, check_residual_norm);
  on_many_rows(kManyRowsWidths, check_residual_norm);
}

TEST(CudaLayerNorm, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  on_cases(kWidths, [](CudaCase& c, DType dtype, int64_t width, float, uint64_t seed) {
    const LayerNorm op({.hidden = width, .eps = 1e-5f});
    c.check(
        op,
        {c.random(tokens(dtype, width)), c.random(parameter(1, width), 0.3, 1.0),
         c.random(parameter(1, width))},
        {c.output(tokens(dtype, width)), seed % 2 ? c.output(tokens(DType::kF32, 2)) : kNoValue});
  });
}

// The bits of the forward pass, padding included.
TEST(CudaNormAgain, GivesTheBitsOfTheNorm) {
  SNUG_NEEDS_GPU();
  on_cases(kWidths, [](CudaCase& c, DType dtype, int64_t width, float dropout, uint64_t) {
    const ValueId gamma = c.random(parameter(1, width), 0.3, 1.0),
                  beta = c.random(parameter(1, width));
    const ValueId y = c.output(tokens(dtype, width)), sum = c.output(tokens(dtype, width)),
                  stats = c.output(tokens(DType::kF32, 2));
    const ResidualNorm forward({.hidden = width, .eps = 1e-5f, .dropout = dropout, .site = 4});
    const auto made = c.launch_op(
        forward, {c.random(tokens(dtype, width)), c.random(tokens(dtype, width)), gamma, beta},
        {y, sum, stats});
    const ValueId same_sum = c.input(tokens(dtype, width), c.real_rows(sum, made[1]));
    const ValueId same_stats = c.input(tokens(DType::kF32, 2), c.real_rows(stats, made[2]));
    const ValueId again = c.output(tokens(dtype, width));
    EXPECT_EQ(c.launch_op(NormAgain(), {same_sum, same_stats, gamma, beta}, {again})[0], made[0])
        << width;
    c.check(NormAgain(), {same_sum, same_stats, gamma, beta}, {again});
  });
}

void check_norm_gradient(CudaCase& c, DType dtype, int64_t width, float dropout, uint64_t seed) {
  const Rows rows_are = norm_rows(seed);
  const auto rows = [&](DType type, int64_t cols) { return TensorDesc{type, rows_are, 1, cols}; };
  const NormGradient op({.dropout = dropout,
                         .site = 4,
                         .add_residual = seed % 3 == 0,
                         .add_x = seed % 4 < 2,
                         .rows = rows_are});
  c.dying = seed % 2;  // dy
  const ValueId sum = c.random(rows(dtype, width));
  const ValueId stats = c.input(rows(DType::kF32, 2), stats_of(c.contents(sum), width, 1e-5));
  const bool residual = seed % 7 != 0, x = seed % 5 != 0, parameters = seed % 6 != 0;
  std::vector<ValueId> out = {
      residual ? c.target(rows(dtype, width), op.spec.add_residual) : kNoValue,
      x ? c.target(rows(dtype, width), op.spec.add_x) : kNoValue,
      parameters ? c.target(parameter(1, width), true) : kNoValue,
      seed % 8 ? c.target(parameter(1, width), true) : kNoValue};
  if (x && !op.spec.add_x) {
    out.push_back(seed % 11 ? c.target(parameter(1, width), true) : kNoValue);
  }
  c.check(op,
          {c.random(rows(dtype, width)), seed % 2 ? c.random(rows(dtype, width)) : kNoValue, sum,
           stats, c.random(parameter(1, width), 0.3, 1.0)},
          out, 2.0, error_at(width));
}

TEST(CudaNormGradient, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  on_cases(kWidths, check_norm_gradient);
  on_many_rows(kManyRowsWidths, check_norm_gradient);
}

constexpr int64_t kVocab = 50, kPositions = 310, kTokenTypes = 2;

// Embeddings with or without norm and types; forward, then backward with the statistics that
// forward left.
void check_embedding(CudaCase& c, DType dtype, const EmbeddingSpec& spec, int64_t types) {
  const int64_t width = spec.hidden;
  const ValueId word = c.random(parameter(kVocab, width)),
                position = c.random(parameter(kPositions, width));
  const ValueId type = types > 0 ? c.random(parameter(types, width)) : kNoValue;
  const ValueId gamma = spec.norm ? c.random(parameter(1, width), 0.3, 1.0) : kNoValue;
  const ValueId beta = spec.norm ? c.random(parameter(1, width)) : kNoValue;
  const ValueId stats = spec.norm ? c.output(tokens(DType::kF32, 2)) : kNoValue;
  const Embedding forward(spec);
  const std::vector<ValueId> in = {word, position, type, gamma, beta},
                             out = {c.output(tokens(dtype, width)), stats};
  c.check(forward, in, out);
  ValueId kept = kNoValue;
  if (spec.norm) {
    Doubles real = decoded(c.launch_op(forward, in, out)[1], DType::kF32);
    real.resize(c.contents(stats).size());
    kept = c.input(tokens(DType::kF32, 2), real);
  }
  const ValueId dy = c.random(tokens(dtype, width), 1.0, 0.0, 0.0);
  const auto gradient = [&](ValueId of, int64_t rows) {
    return of == kNoValue ? kNoValue : c.target(parameter(rows, width), true);
  };
  c.check(EmbeddingGradient(spec), {dy, kept, word, position, type, gamma},
          {dy, gradient(word, kVocab), gradient(position, kPositions), gradient(type, types),
           gradient(gamma, 1), gradient(beta, 1)},
          4.0, std::max(error_at(width), dtype_error(dtype)));
}

TEST(CudaEmbedding, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  on_cases(kWidths, [](CudaCase& c, DType dtype, int64_t width, float dropout, uint64_t seed) {
    const EmbeddingSpec spec = {.hidden = width,
                                .norm = seed % 5 != 0,
                                .eps = 1e-5f,
                                .dropout = dropout,
                                .site = 3,
                                .position_offset = int64_t(seed % 3),
                                .padding_id = int64_t(seed % 4) - 1};
    check_embedding(c, dtype, spec, seed % 4 != 0 ? kTokenTypes : 0);
  });
}

// Few words, so that runs are long; many sequences, so that a position has more of them than a
// block reads at a time.
TEST(CudaEmbedding, MatchesTheCpuForFrequentWords) {
  SNUG_NEEDS_GPU();
  for (int vocab : {1, 2, 5, 47}) {
    for (DType dtype : types_here()) {
      std::vector<int> lengths(300, 3);
      lengths.push_back(300);
      const PackedBatch packed(lengths, 3, vocab, 3);
      CudaCase c(packed, bucket_of(packed.batch, 1), uint64_t(vocab));
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", vocabulary " << vocab);
      check_embedding(
          c, dtype, {.hidden = vocab == 5 ? 77 : 96, .eps = 1e-5f, .dropout = 0.1f, .site = 1}, 3);
    }
  }
}

constexpr Activation kBending[] = {Activation::kGelu, Activation::kGeluTanh, Activation::kTanh,
                                   Activation::kRelu};

TEST(CudaActivation, MatchesFormulas) {
  SNUG_NEEDS_GPU();
  for (DType dtype : types_here()) {
    for (Activation activation : kBending) {
      for (int64_t width : {1, 7, 768, 3072, 3001}) {
        const PackedBatch packed(kBatches[size_t(width) % 4], 3);
        CudaCase c(packed, packed.batch.dims, 5);
        const ValueId pre = c.random(tokens(dtype, width), 2.0), y = c.output(tokens(dtype, width));
        const Linear op({activation});
        const auto run = [&] {
          return c.launch_with(op, {pre}, {y}, [&](const Launch& call) {
            launch_activation(op.spec.activation, call.in[0], call.out[0], call);
          })[0];
        };
        const auto got = run();
        EXPECT_EQ(got, run());
        Doubles expected;
        for (double x : c.contents(pre)) expected.push_back(activate(activation, x));
        c.expect("activation", y, got, expected, dtype == DType::kF32 ? 5e-7 : dtype_error(dtype));
      }
    }
  }
}

TEST(CudaActivationAgain, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  for (Activation activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    on_cases({1, 7, 64, 768, 3072}, [&](CudaCase& c, DType dtype, int64_t width, float, uint64_t) {
      c.check(ActivationAgain(activation),
              {c.random(tokens(dtype, width), 2.0, 0.0, /*padding=*/0.0)},
              {c.output(tokens(dtype, width))});
    });
  }
}

// Every argument of the half types that may occur, and a sweep in fp32. The polynomial of half
// types is good to 7.6e-6; its error has no preferred sign, or sums over many rows would show it.
TEST(CudaActivation, GeluAndItsSlopeAreAccurateEverywhere) {
  SNUG_NEEDS_GPU();
  for (DType dtype : types_here()) {
    Doubles all;
    if (dtype == DType::kF32) {
      for (int i = -140000; i <= 140000; ++i) all.push_back(i * 1e-4);
    } else {
      std::vector<uint16_t> words(0x10000);
      std::iota(words.begin(), words.end(), uint16_t{0});
      for (const double x : decoded(bytes_of(words), dtype)) {
        if (std::abs(x) < 1e6) all.push_back(x);
      }
    }
    while (all.size() % SlopeBytes::kGroup != 0) all.push_back(0.0);
    for (const Activation form : {Activation::kGelu, Activation::kGeluTanh}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", form " << int(form));
      const PackedBatch packed({1}, 3);
      CudaCase c(packed, packed.batch.dims, 5);
      const TensorDesc desc = tokens(dtype, int64_t(all.size()));
      const ValueId pre = c.input(desc, all), y = c.output(desc),
                    slopes_out = c.output(tokens(slope_type(dtype), int64_t(all.size())));
      const Linear op({form});
      const auto got = c.launch_with(op, {}, {pre, slopes_out}, [&](const Launch& call) {
        launch_gelu_and_slope(form, call.out[0], call.out[1], call);
      });
      const auto alone = c.launch_with(op, {pre}, {y}, [&](const Launch& call) {
        launch_activation(form, call.in[0], call.out[0], call);
      });
      EXPECT_EQ(got[0], alone[0]) << "keeping the slope changes the result";
      const Doubles values = decoded(got[0], dtype), slopes = decoded(got[1], slope_type(dtype));
      const double rounding = dtype == DType::kF32 ? 0x1p-24 : dtype_error(dtype),
                   error = dtype == DType::kF32 ? 1e-6 : 8e-6;
      // A byte's error is the same everywhere.
      const auto slope_error = [&](double s) {
        return dtype == DType::kBF16 ? dtype_error(DType::kSlope8) : rounding * std::abs(s);
      };
      double sum = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        const double x = c.contents(pre)[i], value = activate(form, x), s = slope(form, x);
        ASSERT_NEAR(values[i], value, 1.01 * rounding * std::abs(value) + error) << "at " << x;
        ASSERT_NEAR(slopes[i], s, 1.01 * slope_error(s) + error) << "slope at " << x;
        sum += slopes[i] - s;
      }
      EXPECT_NEAR(sum / double(all.size()), 0.0, 0.1 * rounding + 3e-7);
    }
  }
}

// Far out, where tails underflow and squares overflow.
TEST(CudaActivation, HoldsFarFromZero) {
  SNUG_NEEDS_GPU();
  const PackedBatch packed({1}, 3);
  for (Activation activation : kBending) {
    CudaCase c(packed, packed.batch.dims, 5);
    Doubles far;
    for (double x : {0.0, 1e-30, 1e-3, 5.0, 9.0, 13.0, 14.0, 30.0, 1e3, 1e10, 1e18, 1e19}) {
      far.push_back(x);
      far.push_back(-x);
    }
    const ValueId pre = c.input(tokens(DType::kF32, int64_t(far.size())), far);
    const ValueId y = c.output(tokens(DType::kF32, int64_t(far.size())));
    const Linear op({activation});
    const auto got = decoded(c.launch_with(op, {pre}, {y},
                                           [&](const Launch& call) {
                                             launch_activation(op.spec.activation, call.in[0],
                                                               call.out[0], call);
                                           })[0],
                             DType::kF32);
    for (size_t i = 0; i < far.size(); ++i) {
      EXPECT_NEAR(got[i], activate(activation, far[i]), 1e-6 * std::max(1.0, std::abs(far[i])))
          << int(activation) << " at " << far[i];
    }
  }
}

TEST(CudaLinearEpilogueGradient, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  for (Activation activation : {Activation::kNone, Activation::kGelu, Activation::kGeluTanh,
                                Activation::kTanh, Activation::kRelu, Activation::kKeptSlope}) {
    const auto check = [&](CudaCase& c, DType dtype, int64_t width, float, uint64_t seed) {
      const bool bends = activation != Activation::kNone, by_tokens = seed % 4 != 0;
      const TensorDesc desc = by_tokens ? tokens(dtype, width) : sequences(dtype, width);
      const ValueId dy = c.random(desc, 1.0, 0.0, 0.0);
      TensorDesc of_kept = desc;
      if (activation == Activation::kKeptSlope) of_kept.dtype = slope_type(dtype);
      if (of_kept.dtype == DType::kSlope8 && width % SlopeBytes::kGroup != 0) return;
      const ValueId kept =
          bends ? c.random(of_kept, activation == Activation::kTanh ? 0.3 : 2.0) : kNoValue;
      const bool bias = !bends || seed % 3 != 0;
      c.check(LinearEpilogueGradient(activation), {dy, kept},
              {bends ? dy : kNoValue, bias ? c.target(parameter(1, width), true) : kNoValue}, 2.0,
              is_gelu(activation) ? 2.0 * dtype_error(dtype)
                                  : 0.0);  // its slopes are rounded as kept, then added up
    };
    on_cases({1, 7, 64, 768, 1000, 3072}, check);
    if (activation != Activation::kTanh && activation != Activation::kRelu) {
      on_many_rows({96, 300, 77, 3072}, check);
    }
  }
}

TEST(CudaEndToken, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  on_cases({1, 7, 64, 768, 1000}, [](CudaCase& c, DType dtype, int64_t width, float dropout,
                                     uint64_t) {
    for (const End end : {End::kFirst, End::kLast}) {
      c.check(EndToken(end), {c.random(tokens(dtype, width))}, {c.output(sequences(dtype, width))});
      const bool accumulate = dropout > 0.0f;
      c.check(EndTokenGradient(end, accumulate), {c.random(sequences(dtype, width))},
              {c.target(tokens(dtype, width), accumulate)});
    }
  });
}

TEST(CudaMeanPool, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  on_cases({1, 7, 64, 768, 1000}, [](CudaCase& c, DType dtype, int64_t width, float, uint64_t) {
    c.check(MeanPool(), {c.random(tokens(dtype, width))}, {c.output(sequences(dtype, width))});
  });
}

TEST(CudaDropout, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  on_cases({1, 7, 64, 768, 1000},
           [](CudaCase& c, DType dtype, int64_t width, float dropout, uint64_t seed) {
             const bool add = seed % 4 < 2;
             c.check(Dropout({dropout, 5}, add), {c.random(sequences(dtype, width))},
                     {c.target(sequences(dtype, width), add)});
             c.check(Dropout({dropout, 5, Rows::kTokens}, add), {c.random(tokens(dtype, width))},
                     {c.target(tokens(dtype, width), add)});
           });
}

void print_speeds(int64_t rows, bool replayed) {
  constexpr int64_t kHidden = 768, kInner = 3072;
  std::printf("%lld tokens%s\n", static_cast<long long>(rows), replayed ? ", replayed" : "");
  const DType dtype = DType::kBF16;
  const PackedBatch packed(std::vector<int>(size_t(rows / 128), 128), 1, 3000);
  const Dims dims = packed.batch.dims;
  const DeviceBatch batch(packed, dims, 1.0f);
  std::vector<DeviceBytes> memory;
  const auto tensor = [&](DType type, int64_t tensor_rows, int64_t cols) -> Tensor {
    memory.emplace_back(size_t(tensor_rows * cols) * dtype_bytes(type));
    fill_device(memory.back().data(), 0, memory.back().size());
    return {memory.back().data(), type, tensor_rows, cols};
  };
  const DeviceBytes workspace(size_t{16} << 20);
  const StepContext step = {.seed = 1, .training = true};
  const auto time = [&](const std::string& what, double bytes, const std::vector<Tensor>& in,
                        const std::vector<Tensor>& out, const auto& work) {
    Launch call = {.in = in,
                   .out = out,
                   .workspace = {workspace.data<std::byte>(), workspace.size()},
                   .batch = &batch.batch,
                   .state = batch.state,
                   .step = &step};
    const auto work_on = [&](cudaStream_t stream) {
      call.stream = stream;
      work(call);
    };
    print_speed(what, replayed ? median_replay_milliseconds(work_on) : median_milliseconds([&] {
                  work_on(nullptr);
                }),
                bytes);
  };
  const auto hidden = [&] { return tensor(dtype, rows, kHidden); };
  const auto row = [&] { return tensor(DType::kF32, 1, kHidden); };
  const double hidden_bytes = 2.0 * double(rows * kHidden),
               inner_bytes = 2.0 * double(rows * kInner);
  const Tensor stats = tensor(DType::kF32, rows, 2);
  for (float dropout : {0.0f, 0.1f}) {
    const std::string suffix = dropout > 0.0f ? ", dropout" : "";
    const ResidualNorm norm({.hidden = kHidden, .dropout = dropout});
    time("residual_norm" + suffix, 4 * hidden_bytes, {hidden(), hidden(), row(), row()},
         {hidden(), hidden(), stats}, [&](const Launch& call) { launch(norm, call); });
    const NormGradient gradient({.dropout = dropout});
    time("norm_gradient" + suffix, 4 * hidden_bytes, {hidden(), {}, hidden(), stats, row()},
         {hidden(), hidden(), row(), row()}, [&](const Launch& call) { launch(gradient, call); });
    time("norm_gradient, bias" + suffix, 4 * hidden_bytes, {hidden(), {}, hidden(), stats, row()},
         {hidden(), hidden(), row(), row(), row()},
         [&](const Launch& call) { launch(gradient, call); });
    time("norm_gradient, dsum" + suffix, 5 * hidden_bytes,
         {hidden(), hidden(), hidden(), stats, row()}, {hidden(), hidden(), row(), row()},
         [&](const Launch& call) { launch(gradient, call); });
  }
  const Tensor pre = tensor(dtype, rows, kInner), y = tensor(dtype, rows, kInner),
               slopes = tensor(slope_type(dtype), rows, kInner);
  for (Activation activation : {Activation::kGelu, Activation::kGeluTanh}) {
    const std::string suffix = activation == Activation::kGelu ? " gelu" : " gelu_tanh";
    const Linear linear({activation});
    time("activation" + suffix, 2 * inner_bytes, {}, {},
         [&](const Launch& call) { launch_activation(linear.spec.activation, pre, y, call); });
    time("activation and slope" + suffix, 2.5 * inner_bytes, {}, {}, [&](const Launch& call) {
      launch_gelu_and_slope(linear.spec.activation, y, slopes, call);
    });
    const LinearEpilogueGradient gradient(activation);
    time("epilogue gradient" + suffix, 3 * inner_bytes, {y, pre},
         {y, tensor(DType::kF32, 1, kInner)}, [&](const Launch& call) { launch(gradient, call); });
  }
  const LinearEpilogueGradient by_slope(Activation::kKeptSlope);
  time("epilogue gradient kept slope", 2.5 * inner_bytes, {y, slopes},
       {y, tensor(DType::kF32, 1, kInner)}, [&](const Launch& call) { launch(by_slope, call); });
  const LinearEpilogueGradient sums(Activation::kNone);
  time("epilogue gradient none, 3072", inner_bytes, {y, {}}, {{}, tensor(DType::kF32, 1, kInner)},
       [&](const Launch& call) { launch(sums, call); });
  time("epilogue gradient none, 2304", 3 * hidden_bytes, {tensor(dtype, rows, 3 * kHidden), {}},
       {{}, tensor(DType::kF32, 1, 3 * kHidden)}, [&](const Launch& call) { launch(sums, call); });
  time("epilogue gradient none, 768", hidden_bytes, {hidden(), {}}, {{}, row()},
       [&](const Launch& call) { launch(sums, call); });
  constexpr int64_t kWords = 30522;
  const Tensor word = tensor(DType::kF32, kWords, kHidden),
               position = tensor(DType::kF32, 512, kHidden);
  const Tensor type = tensor(DType::kF32, 2, kHidden), gamma = row(), beta = row();
  const EmbeddingSpec spec = {.hidden = kHidden, .dropout = 0.1f};
  const Embedding embedding(spec);
  // The tables' rows come from the cache but for the words' first reading.
  time("embedding", hidden_bytes + 4.0 * 3000 * kHidden, {word, position, type, gamma, beta},
       {hidden(), stats}, [&](const Launch& call) { launch(embedding, call); });
  const EmbeddingGradient gradient(spec);
  const Tensor dy = hidden();
  time("embedding gradient", 5 * hidden_bytes + 8.0 * 3000 * kHidden,
       {dy, stats, word, position, type, gamma},
       {dy, tensor(DType::kF32, kWords, kHidden), tensor(DType::kF32, 512, kHidden),
        tensor(DType::kF32, 2, kHidden), row(), row()},
       [&](const Launch& call) { launch(gradient, call); });
}

// The real sizes of training; numbers for people, nothing is asserted.
TEST(CudaElements, SpeedIsPrinted) {
  SNUG_NEEDS_GPU();
  print_speeds(16384, false);
  print_speeds(1024, true);
}

TEST(CudaConvert, RoundsLikeTheCpu) {
  SNUG_NEEDS_GPU();
  const PackedBatch packed({1}, 1);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {3, 100}, {61, 333}, {64, 1024}, {1, 4097}}) {
      CudaCase c(packed, packed.batch.dims, uint64_t(rows * cols));
      const ValueId x = c.random(parameter(rows, cols), 100.0),
                    y = c.output(fixed(dtype, rows, cols));
      EXPECT_EQ(c.launch_op(Convert(), {x}, {y})[0], encoded(c.contents(x), dtype))
          << rows << " x " << cols;
    }
  }
}

TEST(CudaConvert, WidensBfloat16) {
  SNUG_NEEDS_GPU();
  const PackedBatch packed({1}, 1);
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {3, 100}, {64, 1024}, {1, 4099}}) {
    CudaCase c(packed, packed.batch.dims, uint64_t(rows * cols));
    const ValueId x = c.random(fixed(DType::kBF16, rows, cols), 100.0),
                  y = c.output(parameter(rows, cols));
    EXPECT_EQ(c.launch_op(Convert(), {x}, {y})[0], encoded(c.contents(x), DType::kF32))
        << rows << " x " << cols;
  }
}

}  // namespace
}  // namespace snug::cuda

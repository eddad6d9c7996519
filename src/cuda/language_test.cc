// The kernels that train language models against the CPU operators: linear layers in both layouts,
// target rows, the head and its loss.
#include "cuda/language_test_util.h"
#include "ops/cached_attention.h"
#include "ops/convert.h"
#include "ops/cuda_workspace.h"
#include "ops/dropout.h"
#include "ops/linear.h"
#include "ops/sample.h"
#include "ops/target_rows.h"
#include "ops/vocabulary_loss.h"

namespace snug::cuda {
namespace {

const std::vector<std::vector<int>> kBatches = {{1}, {2, 1}, {100, 20, 7}, {150, 1, 100, 49, 1}};

void check_linear(CudaCase& c, DType dtype, const LinearSpec& spec, int64_t in, int64_t out,
                  bool keeps) {
  const bool out_in = spec.layout == WeightLayout::kOutIn;
  const TensorDesc weight = out_in ? fixed(dtype, out, in) : fixed(dtype, in, out);
  const ValueId x = c.random(tokens(dtype, in)), w = c.random(weight, 1.0 / std::sqrt(double(in)));
  const ValueId b = c.random(fixed(dtype, 1, out));
  std::vector<ValueId> results = {c.output(tokens(dtype, out))};
  if (keeps) {
    results.push_back(c.output(tokens(spec.keeps_slope ? slope_type(dtype) : dtype, out)));
  }
  // Behind the real rows products leave what the padding gives, so only buckets that are full are
  // compared.
  check_product(c, Linear(spec), {x, w, b}, results, 4.0, dtype_error(dtype));
  const ValueId dy = c.random(tokens(dtype, out), 1.0, 0.0, 0.0);
  for (const bool accumulate : {false, true}) {
    check_product(c, LinearInputGradient(accumulate, spec.layout), {dy, w},
                  {c.target(tokens(dtype, in), accumulate)}, 4.0, dtype_error(dtype));
  }
  check_product(c, LinearWeightGradient(spec.layout), {dy, x},
                {c.random(out_in ? fixed(DType::kF32, out, in) : fixed(DType::kF32, in, out))}, 4.0,
                0.0);
}

TEST(CudaLinear, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (DType dtype : types_here()) {
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      for (const Activation activation :
           {Activation::kNone, Activation::kGelu, Activation::kGeluTanh}) {
        for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 256}, {100, 48}, {7, 13}}) {
          SCOPED_TRACE(testing::Message()
                       << dtype_name(dtype) << ", layout " << int(layout) << ", activation "
                       << int(activation) << ", " << in << " to " << out);
          const PackedBatch packed(kBatches[seed % kBatches.size()], seed);
          CudaCase c(packed, packed.batch.dims, seed);
          const bool keeps = activation != Activation::kNone && seed % 2 == 0;
          check_linear(c, dtype, {activation, layout}, in, out, keeps);
          if (keeps && out % SlopeBytes::kGroup == 0) {
            check_linear(c, dtype,
                         {.activation = activation, .layout = layout, .keeps_slope = true}, in, out,
                         keeps);
          }
          ++seed;
        }
      }
    }
  }
}

// A tagger's rows have the masks of their tokens.
TEST(CudaDropout, MatchesTheCpuOnTargets) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (DType dtype : types_here()) {
    for (const int64_t width : {7, 64, 768}) {
      const TargetBatch batch(kBatches[seed % kBatches.size()], seed, Predicting::kSome, 9);
      CudaCase c(batch, bucket_of(batch.batch, seed), seed);
      for (const bool add : {false, true}) {
        c.check(Dropout({0.1f, 5, Rows::kTargets}, add), {c.random(targets(dtype, width))},
                {c.target(targets(dtype, width), add)});
      }
      ++seed;
    }
  }
}

TEST(CudaAdapters, MatchTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (DType dtype : types_here()) {
    for (const Activation activation :
         {Activation::kNone, Activation::kGelu, Activation::kGeluTanh}) {
      for (const int64_t rank : {8, 4, 1, 13}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", activation " << int(activation)
                                        << ", rank " << rank);
        const int64_t in = 64, part = 48, out = 3 * part;
        const PackedBatch packed(kBatches[seed % kBatches.size()], seed);
        CudaCase c(packed, packed.batch.dims, seed++);
        const LinearSpec spec{
            activation, WeightLayout::kOutIn, {.first_columns = {0, 2 * part}, .scale = 0.5f}};
        std::vector<ValueId> inputs = {c.random(tokens(dtype, in)),
                                       c.random(fixed(dtype, out, in), 0.125),
                                       c.random(fixed(dtype, 1, out))};
        for (int i = 0; i < 2; ++i) {
          inputs.push_back(c.random(tokens(dtype, rank)));
          inputs.push_back(c.random(fixed(dtype, part, rank)));
        }
        std::vector<ValueId> results = {c.output(tokens(dtype, out))};
        if (keeps_pre_activation(activation)) results.push_back(c.output(tokens(dtype, out)));
        // The product is rounded once before the adapters' share is added.
        check_product(c, Linear(spec), inputs, results, 4.0, 8 * dtype_error(dtype));
        const ValueId dy = c.random(tokens(dtype, out), 1.0, 0.0, 0.0);
        check_product(c, AdapterGradient(2 * part, 0.5f), {dy, inputs[5], inputs[6]},
                      {c.output(tokens(dtype, rank)), c.random(fixed(DType::kF32, part, rank))},
                      4.0, dtype_error(dtype));
      }
    }
  }
}

TEST(CudaTargetRows, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 0;
  for (DType dtype : types_here()) {
    for (int64_t hidden : {1, 7, 64, 100, 768}) {
      for (const Predicting which :
           {Predicting::kAllButLast, Predicting::kSome, Predicting::kLast}) {
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", hidden " << hidden << ", seed " << seed);
        const TargetBatch batch(kBatches[seed % kBatches.size()], seed, which, 50);
        CudaCase c(batch, bucket_of(batch.batch, seed), seed);
        c.check(TargetRows(), {c.random(tokens(dtype, hidden))},
                {c.output(targets(dtype, hidden))});
        for (const bool accumulate : {false, true}) {
          c.check(TargetRowsGradient(accumulate), {c.random(targets(dtype, hidden))},
                  {c.target(tokens(dtype, hidden), accumulate)});
        }
        ++seed;
      }
    }
  }
}

struct LossCase {
  int64_t hidden, vocabulary, chunk;
};

constexpr int64_t kSpare = 5;  // rows of a vocabulary that no target has

// Logits of size one, rounded to the type before the softmax.
void check_vocabulary_loss(CudaCase& c, DType dtype, const LossCase& size, uint64_t seed) {
  const auto& [hidden, vocabulary, chunk] = size;
  const ValueId x = c.random(targets(dtype, hidden));
  const ValueId w = c.random(fixed(dtype, vocabulary, hidden), 2.0 / std::sqrt(double(hidden)));
  const ValueId b = seed % 2 ? c.random(fixed(dtype, 1, vocabulary)) : kNoValue;
  const ValueId loss = c.target(fixed(DType::kF64, 1, 1), true);
  const double error = dtype_error(dtype);
  const int64_t real = seed % 4 < 2 ? vocabulary - kSpare : 0;  // the rest rounds the vocabulary up
  check_product(c, VocabularyLoss({.chunk = chunk, .vocabulary = real}), {x, w, b}, {loss}, 4.0,
                error);
  const ValueId dx = c.output(targets(dtype, hidden)),
                dw = c.target(fixed(DType::kF32, vocabulary, hidden), true);
  const ValueId db = b == kNoValue ? kNoValue : c.target(fixed(DType::kF32, 1, vocabulary), true);
  check_product(c, VocabularyLossGradient(chunk, real), {x, w, b}, {loss, dx, dw, db}, 4.0, error);
  const ValueId only_dx = seed % 3 ? kNoValue : dw;
  check_product(c, VocabularyLossGradient(chunk, real), {x, w, b}, {loss, dx, only_dx, kNoValue},
                4.0, error);
}

// The same with a teacher that is wider and whose logits lie elsewhere. Its errors come on top of
// the student's.
void check_distilled_loss(CudaCase& c, DType dtype, const LossCase& size, const Distillation& how,
                          uint64_t seed) {
  const auto& [hidden, vocabulary, chunk] = size;
  std::vector<ValueId> in;
  for (const int64_t width : {hidden, 2 * hidden + 3}) {
    in.push_back(c.random(targets(dtype, width)));
    in.push_back(c.random(fixed(dtype, vocabulary, width), 2.0 / std::sqrt(double(width))));
    in.push_back(seed % 2 ? c.random(fixed(dtype, 1, vocabulary), 1.0, width == hidden ? 0.0 : 1.0)
                          : kNoValue);
  }
  const int64_t real = seed % 4 < 2 ? vocabulary - kSpare : 0;
  const ValueId loss = c.target(fixed(DType::kF64, 1, 1), true),
                dx = c.output(targets(dtype, hidden));
  const ValueId dw = c.target(fixed(DType::kF32, vocabulary, hidden), true);
  const ValueId db = seed % 2 ? c.target(fixed(DType::kF32, 1, vocabulary), true) : kNoValue;
  SCOPED_TRACE(testing::Message() << "temperature " << how.temperature << ", alpha " << how.alpha);
  check_product(c, VocabularyLossGradient(chunk, real, how), in, {loss, dx, dw, db}, 8.0,
                dtype_error(dtype));
}

TEST(CudaVocabularyLoss, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 1;
  for (DType dtype : types_here()) {
    for (const LossCase& size :
         {LossCase{7, 97, 5}, {64, 1000, 32}, {100, 97, 1000}, {64, 1000, 1}, {100, 1003, 64}}) {
      for (const Predicting which : {Predicting::kAllButLast, Predicting::kSome}) {
        const std::vector<int> lengths =
            size.chunk == 1 ? std::vector<int>{5, 2} : std::vector<int>{70, 1, 30};
        const TargetBatch batch(lengths, seed, which, int(size.vocabulary - kSpare));
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", " << batch.batch.dims.targets << " targets of "
                     << size.vocabulary << ", hidden " << size.hidden << ", chunk " << size.chunk);
        CudaCase c(batch, bucket_of(batch.batch, seed), seed);
        check_vocabulary_loss(c, dtype, size, seed);
        ++seed;
      }
    }
    const TargetBatch batch({20, 3}, seed, Predicting::kAllButLast, int(50257 - kSpare));
    CudaCase c(batch, bucket_of(batch.batch, seed), seed);
    SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", a real vocabulary");
    check_vocabulary_loss(c, dtype, {64, 50257, 13}, seed++);
  }
}

TEST(CudaVocabularyLoss, DistilsLikeTheCpu) {
  SNUG_NEEDS_GPU();
  uint64_t seed = 1;
  for (DType dtype : types_here()) {
    for (const LossCase& size :
         {LossCase{7, 97, 5}, {64, 1000, 32}, {100, 1003, 64}, {64, 50257, 13}}) {
      for (const Distillation& how :
           {Distillation{2.0f, 0.5f}, {1.0f, 1.0f}, {4.0f, 0.9f}, {4.0f, 0.0f}}) {
        const std::vector<int> lengths =
            size.vocabulary > 10000 ? std::vector<int>{20, 3} : std::vector<int>{70, 1, 30};
        const TargetBatch batch(lengths, seed, Predicting::kAllButLast,
                                int(size.vocabulary - kSpare));
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << ", " << batch.batch.dims.targets << " targets of "
                     << size.vocabulary << ", hidden " << size.hidden << ", chunk " << size.chunk);
        CudaCase c(batch, bucket_of(batch.batch, seed), seed);
        check_distilled_loss(c, dtype, size, how, seed);
        ++seed;
      }
    }
  }
}

TEST(CudaVocabularyLoss, LaunchesNothingWhereTheGradientComputesIt) {
  SNUG_NEEDS_GPU();
  const TargetBatch batch({9}, 1, Predicting::kAllButLast, 97);
  CudaCase c(batch, batch.batch.dims, 1);
  const ValueId loss = c.target(fixed(DType::kF64, 1, 1), true);
  const VocabularyLoss op({.chunk = 4, .with_gradient = true});
  const auto got = c.launch_op(
      op, {c.random(targets(DType::kF32, 8)), c.random(fixed(DType::kF32, 97, 8)), kNoValue},
      {loss});
  EXPECT_EQ(decoded(got[0], DType::kF64), c.contents(loss));
}

// A confident row's loss is small, and one of huge logits finite.
TEST(CudaVocabularyLoss, HoldsFarFromZero) {
  SNUG_NEEDS_GPU();
  for (DType dtype : types_here()) {
    const TargetBatch batch({2, 2, 2}, 3, Predicting::kAllButLast, 97);
    CudaCase c(batch, batch.batch.dims, 1);
    Doubles w(97);
    for (size_t i = 0; i < w.size(); ++i) w[i] = double(i) - 48.0;
    const std::vector<ValueId> in = {c.input(targets(dtype, 1), {200.0, -200.0, 0.0}),
                                     c.input(fixed(dtype, 97, 1), w), kNoValue};
    const std::vector<ValueId> out = {c.target(fixed(DType::kF64, 1, 1), true),
                                      c.output(targets(dtype, 1)), kNoValue, kNoValue};
    SCOPED_TRACE(dtype_name(dtype));
    check_product(c, VocabularyLossGradient(2), in, out, 4.0, dtype_error(dtype));
  }
}

// Numbers for people; nothing is asserted.
class Speeds {
 public:
  Speeds(const TargetBatch& packed)
      : batch_(packed, packed.batch.dims, 1.0f), workspace_(size_t{1} << 30) {}

  Tensor tensor(DType dtype, int64_t rows, int64_t cols) {
    memory_.emplace_back(size_t(rows * cols) * dtype_bytes(dtype));
    // Small numbers, since zeros run faster.
    fill_device(memory_.back().data(), 0x3c, memory_.back().size());
    return {memory_.back().data(), dtype, rows, cols};
  }
  template <class OpType>
  void time(const std::string& what, double bytes, const OpType& op, const std::vector<Tensor>& in,
            const std::vector<Tensor>& out, bool replayed) {
    Launch call = {.in = in,
                   .out = out,
                   .workspace = {workspace_.data<std::byte>(), workspace_.size()},
                   .batch = &batch_.batch,
                   .state = batch_.state,
                   .step = &step_,
                   .products = &shared_products()};
    const auto work = [&](cudaStream_t stream) {
      call.stream = stream;
      launch(op, call);
    };
    work(nullptr);
    print_speed(what, replayed ? median_replay_milliseconds(work) : median_milliseconds([&] {
                  work(nullptr);
                }),
                bytes);
  }

 private:
  DeviceBatch batch_;
  DeviceBytes workspace_;
  StepContext step_ = {.seed = 1, .training = true};
  std::vector<DeviceBytes> memory_;
};

TEST(CudaLanguage, SpeedIsPrinted) {
  SNUG_NEEDS_GPU();
  constexpr int64_t kWords = 50257, kHidden = 1024, kTargets = 8184, kChunk = 4096;
  const DType dtype = DType::kBF16;
  {
    const TargetBatch batch(std::vector<int>(8, 1024), 1, Predicting::kAllButLast, kWords);
    Speeds speeds(batch);
    const Tensor x = speeds.tensor(dtype, kTargets, kHidden),
                 w = speeds.tensor(dtype, kWords, kHidden);
    const Tensor loss = speeds.tensor(DType::kF64, 1, 1),
                 dx = speeds.tensor(dtype, kTargets, kHidden);
    const Tensor dw = speeds.tensor(DType::kF32, kWords, kHidden),
                 all = speeds.tensor(dtype, 8192, kHidden);
    const double logits_bytes = 2.0 * double(kTargets * kWords);
    speeds.time("vocabulary_loss", 2 * logits_bytes, VocabularyLoss({.chunk = kChunk}), {x, w, {}},
                {loss}, false);
    speeds.time("vocabulary_loss_gradient", 5 * logits_bytes, VocabularyLossGradient(kChunk),
                {x, w, {}}, {loss, dx, dw, {}}, false);
    const Tensor teacher = speeds.tensor(dtype, kTargets, kHidden),
                 words = speeds.tensor(dtype, kWords, kHidden);
    speeds.time("vocabulary_loss_gradient, distilled", 9 * logits_bytes,
                VocabularyLossGradient(kChunk), {x, w, {}, teacher, words, {}}, {loss, dx, dw, {}},
                false);
    speeds.time("target_rows", 4.0 * double(kTargets * kHidden), TargetRows(), {all}, {x}, true);
    speeds.time("target_rows_gradient", 4.0 * double(kTargets * kHidden), TargetRowsGradient(false),
                {dx}, {all}, true);
    speeds.time("convert", 6.0 * double(kWords * kHidden), Convert(), {dw}, {w}, false);
  }
  for (const int texts : {1, 16, 64}) {
    for (const int position : {100, 1000}) {
      std::vector<uint64_t> numbers(static_cast<size_t>(texts));
      std::iota(numbers.begin(), numbers.end(), uint64_t{0});
      const CacheBatch batch(std::vector<int>(numbers.size(), 1),
                             std::vector<int>(numbers.size(), position), numbers, 1);
      Speeds speeds(batch);
      const std::string suffix = ", " + std::to_string(texts) + " at " + std::to_string(position);
      const Tensor cache = speeds.tensor(dtype, texts * 1024, 2 * 768);
      speeds.time("cached_attention" + suffix, 4.0 * 768 * texts * position,
                  CachedAttention({12, 64, 1024}), {speeds.tensor(dtype, texts, 3 * 768)},
                  {speeds.tensor(dtype, texts, 768), cache}, true);
      const Tensor logits = speeds.tensor(dtype, texts, kWords),
                   next = speeds.tensor(DType::kF32, texts, 2);
      const double bytes = 2.0 * double(texts * kWords);
      speeds.time("sample, greedy" + suffix, bytes, Sample({}), {logits}, {next}, true);
      speeds.time("sample, top-k and top-p" + suffix, bytes,
                  Sample({.temperature = 1.0f, .top_k = 50, .top_p = 0.9f}), {logits}, {next},
                  true);
    }
  }
  const CacheBatch prompt({1000}, {0}, {0}, 1);
  Speeds speeds(prompt);
  speeds.time("cached_attention, prompt of 1000", 4.0 * 768 * 1000, CachedAttention({12, 64, 1024}),
              {speeds.tensor(dtype, 1000, 3 * 768)},
              {speeds.tensor(dtype, 1000, 768), speeds.tensor(dtype, 1024, 2 * 768)}, true);
}

}  // namespace
}  // namespace snug::cuda

// The optimizer step on the device against optim/adamw.h.
#include "cuda/update.h"

#include <random>

#include "cuda/cuda_test_util.h"
#include "optim/adamw.h"

namespace snug::cuda {
namespace {

constexpr int64_t kAlign = 16;

int64_t aligned(int64_t count) { return (count + kAlign - 1) / kAlign * kAlign; }

// Parameters of the given sizes with gaps between them, on the host and on the device.
struct Case {
  std::vector<UpdateChunk> chunks;
  std::vector<int64_t> sizes, offsets;
  std::vector<float> w, g, m, v;
  DType copy_dtype;

  Case(std::vector<int64_t> parameter_sizes, DType copies, uint64_t seed) : sizes(std::move(parameter_sizes)) {
    copy_dtype = copies;
    int64_t total = 0;
    for (size_t p = 0; p < sizes.size(); ++p) {
      offsets.push_back(total);
      for (int64_t begin = 0; begin < sizes[p]; begin += kUpdateChunk) {
        chunks.push_back({.offset = total + begin,
                          .first = total + begin,
                          .copy_offset = has_copy(p) ? total + begin : -1,
                          .count = int32_t(std::min<int64_t>(kUpdateChunk, sizes[p] - begin)),
                          .decays = decays(p)});
      }
      total += aligned(sizes[p]) + kAlign;
    }
    for (UpdateChunk& chunk : chunks) chunk.second = total + chunk.offset;  // behind all first moments
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* list : {&w, &g, &m, &v}) {
      list->assign(size_t(total), std::numeric_limits<float>::quiet_NaN());  // in the gaps
      for (size_t p = 0; p < sizes.size(); ++p) {
        for (int64_t i = 0; i < sizes[p]; ++i) {
          const float value = normal(random);
          (*list)[size_t(offsets[p] + i)] = list == &v ? value * value : value;
        }
      }
    }
  }

  static bool has_copy(size_t p) { return p % 3 != 2; }
  static bool decays(size_t p) { return p % 2 == 0; }
  std::span<float> of(std::vector<float>& list, size_t p) {
    return {list.data() + offsets[p], size_t(sizes[p])};
  }
};

struct Outcome {
  std::vector<float> w, g, m, v;
  std::vector<std::byte> copies;
  UpdateResult result;
  double loss_after;

  bool operator==(const Outcome& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return bytes_of(a) == bytes_of(b);
    };
    return same(w, other.w) && same(g, other.g) && same(m, other.m) && same(v, other.v) && copies == other.copies;
  }
};

Outcome run(const Case& c, const UpdateFactors& factors, double loss) {
  std::vector<float> moments = c.m;
  moments.insert(moments.end(), c.v.begin(), c.v.end());
  const DeviceBytes w(bytes_of(c.w)), g(bytes_of(c.g)), states(bytes_of(moments));
  const DeviceBytes copies(c.w.size() * dtype_bytes(c.copy_dtype)), chunks(bytes_of(c.chunks));
  const DeviceBytes on_device(bytes_of(std::vector<UpdateFactors>{factors})), losses(bytes_of(Doubles{loss}));
  const DeviceBytes result(sizeof(UpdateResult)), partials(kNormPartials * sizeof(double));
  launch_update({.weights = w.data<float>(),
                 .gradients = g.data<float>(),
                 .moments = states.data<float>(),
                 .copies = copies.data(),
                 .copy_dtype = c.copy_dtype,
                 .chunks = chunks.data<UpdateChunk>(),
                 .chunk_count = int64_t(c.chunks.size()),
                 .factors = on_device.data<UpdateFactors>(),
                 .loss = losses.data<double>(),
                 .result = result.data<UpdateResult>(),
                 .partials = partials.data<double>()},
                nullptr);
  SNUG_CUDA(cudaDeviceSynchronize());
  for (const DeviceBytes* bytes : {&w, &g, &states, &copies, &losses, &result, &partials}) {
    EXPECT_TRUE(bytes->guards_intact());
  }
  moments = values_of<float>(states.download());
  const auto middle = moments.begin() + ptrdiff_t(c.m.size());
  return {values_of<float>(w.download()),
          values_of<float>(g.download()),
          {moments.begin(), middle},
          {middle, moments.end()},
          copies.download(),
          values_of<UpdateResult>(result.download())[0],
          values_of<double>(losses.download())[0]};
}

// The factors of a step, as optim/adamw.cc has them.
UpdateFactors factors_of(const AdamWStep& step, float max_norm, float gradient_scale) {
  const double correction1 = 1.0 - std::pow(step.beta1, double(step.step));
  const double correction2 = 1.0 - std::pow(step.beta2, double(step.step));
  return {.keep = float(1.0 - step.learning_rate * step.weight_decay),
          .step_size = float(step.learning_rate / correction1),
          .new_m = float(1.0 - step.beta1),
          .old_v = float(step.beta2),
          .new_v = float(1.0 - step.beta2),
          .v_correction = float(1.0 / std::sqrt(correction2)),
          .epsilon = float(step.epsilon),
          .max_norm = max_norm,
          .gradient_scale = gradient_scale};
}

const AdamWStep kStep = {.learning_rate = 1e-2, .weight_decay = 0.1, .step = 3};
const std::vector<int64_t> kSizes = {1, 3, 4096, 4097, 10000, 5, 16, 31, 8191, 12};

double squares_of(Case& c) {
  double squares = 0.0;
  for (size_t p = 0; p < c.sizes.size(); ++p) squares += sum_of_squares(c.of(c.g, p));
  return squares;
}

void check(Case c, float max_norm, float gradient_scale) {
  SCOPED_TRACE(testing::Message() << "max_norm " << max_norm << ", scale " << gradient_scale);
  const double norm = std::sqrt(squares_of(c)) * gradient_scale;
  const Outcome got = run(c, factors_of(kStep, max_norm, gradient_scale), 2.5);
  EXPECT_TRUE(got == run(c, factors_of(kStep, max_norm, gradient_scale), 2.5)) << "two runs differ";
  EXPECT_EQ(got.result.loss, 2.5);
  EXPECT_EQ(got.loss_after, 0.0);
  EXPECT_EQ(got.result.applied, 1);
  EXPECT_NEAR(got.result.gradient_norm, norm, 1e-6 * norm);
  const double clip = max_norm > 0.0f ? std::min(1.0, double(max_norm) / (norm + 1e-6)) : 1.0;
  EXPECT_NEAR(got.result.clip, clip, 1e-6);
  const Case before = c;
  for (size_t p = 0; p < c.sizes.size(); ++p) {
    AdamWStep step = kStep;
    step.gradient_scale = double(gradient_scale) * double(got.result.clip);
    if (!Case::decays(p)) step.weight_decay = 0.0;
    adamw(c.of(c.w, p), c.of(c.g, p), c.of(c.m, p), c.of(c.v, p), step);
  }
  std::vector<float> zeros = c.g;
  for (size_t p = 0; p < c.sizes.size(); ++p) std::ranges::fill(c.of(zeros, p), 0.0f);
  EXPECT_EQ(bytes_of(got.g), bytes_of(zeros));
  const Doubles copies = decoded(got.copies, c.copy_dtype);
  for (size_t p = 0; p < c.sizes.size(); ++p) {
    for (int64_t n = 0; n < c.sizes[p]; ++n) {
      const size_t i = size_t(c.offsets[p] + n);
      // A compiler may fuse other products than the CPU does: some units in the last place of what was added.
      ASSERT_NEAR(got.m[i], c.m[i], 4.0 * kEps * (std::abs(before.m[i]) + std::abs(before.g[i]))) << p << " " << n;
      ASSERT_NEAR(got.v[i], c.v[i], 4.0 * kEps * std::abs(c.v[i])) << p << " " << n;
      ASSERT_NEAR(got.w[i], c.w[i], 4.0 * kEps * (1.0 + std::abs(c.w[i]))) << p << " " << n;
      const double rounded = decoded(encoded({double(got.w[i])}, c.copy_dtype), c.copy_dtype)[0];
      if (Case::has_copy(p)) {
        ASSERT_EQ(copies[i], rounded) << p << " " << n;
      } else {
        ASSERT_TRUE(std::isnan(copies[i])) << p << " " << n;
      }
    }
  }
}

TEST(CudaUpdate, MatchesTheCpu) {
  SNUG_NEEDS_GPU();
  for (DType copies : {DType::kBF16, DType::kF16, DType::kF32}) check(Case(kSizes, copies, 1), 0.0f, 1.0f);
}

TEST(CudaUpdate, Clips) {
  SNUG_NEEDS_GPU();
  check(Case(kSizes, DType::kBF16, 2), 1.0f, 1.0f);
  check(Case(kSizes, DType::kBF16, 2), 1e6f, 1.0f);
  check(Case(kSizes, DType::kF16, 2), 1.0f, 1.0f / 1024.0f);
}

// More chunks than blocks that sum squares.
TEST(CudaUpdate, MatchesTheCpuForManyParameters) {
  SNUG_NEEDS_GPU();
  std::vector<int64_t> sizes(1500, 77);
  sizes.push_back(3000001);
  check(Case(sizes, DType::kBF16, 3), 1.0f, 1.0f);
}

TEST(CudaUpdate, AppliesNothingThatIsNotFinite) {
  SNUG_NEEDS_GPU();
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (float bad : {nan, infinity, -infinity, 1.0f}) {
    Case c(kSizes, DType::kBF16, 4);
    c.g[size_t(c.offsets[4] + 9999)] = bad;
    const double loss = bad == 1.0f ? double(nan) : 2.0;
    const Outcome got = run(c, factors_of(kStep, 1.0f, 1.0f), loss);
    EXPECT_EQ(got.result.applied, 0);
    EXPECT_EQ(got.loss_after, 0.0);
    EXPECT_EQ(bytes_of(got.w), bytes_of(c.w));
    EXPECT_EQ(bytes_of(got.m), bytes_of(c.m));
    EXPECT_EQ(bytes_of(got.v), bytes_of(c.v));
    EXPECT_EQ(got.copies, std::vector<std::byte>(got.copies.size(), std::byte(0xff)));
    std::vector<float> zeros = c.g;
    for (size_t p = 0; p < c.sizes.size(); ++p) std::ranges::fill(c.of(zeros, p), 0.0f);
    EXPECT_EQ(bytes_of(got.g), bytes_of(zeros));
  }
}

// A model of 110 million parameters; nothing is asserted.
TEST(CudaUpdate, SpeedIsPrinted) {
  SNUG_NEEDS_GPU();
  constexpr int64_t kParameters = 110'000'000;
  std::vector<UpdateChunk> list;
  for (int64_t begin = 0; begin < kParameters; begin += kUpdateChunk) {
    list.push_back({begin, begin, kParameters + begin, begin, int32_t(std::min<int64_t>(kUpdateChunk, kParameters - begin)), 1});
  }
  const auto zeros = [](size_t bytes) {
    DeviceBytes memory(bytes);
    SNUG_CUDA(cudaMemset(memory.data(), 0, bytes));
    return memory;
  };
  const DeviceBytes w = zeros(kParameters * 4), g = zeros(kParameters * 4), moments = zeros(kParameters * 8), copies = zeros(kParameters * 2), loss = zeros(8),
                    result = zeros(sizeof(UpdateResult)), partials = zeros(kNormPartials * 8);
  const DeviceBytes chunks(bytes_of(list)), factors(bytes_of(std::vector<UpdateFactors>{{}}));
  const UpdateArguments arguments = {.weights = w.data<float>(),
                                     .gradients = g.data<float>(),
                                     .moments = moments.data<float>(),
                                     .copies = copies.data(),
                                     .copy_dtype = DType::kBF16,
                                     .chunks = chunks.data<UpdateChunk>(),
                                     .chunk_count = int64_t(list.size()),
                                     .factors = factors.data<UpdateFactors>(),
                                     .loss = loss.data<double>(),
                                     .result = result.data<UpdateResult>(),
                                     .partials = partials.data<double>()};
  const double bytes = (4.0 + 16.0 + 16.0 + 2.0) * kParameters;  // norm; update: read, write; copy
  print_speed("update of 110M parameters", median_milliseconds([&] { launch_update(arguments, nullptr); }), bytes);
}

}  // namespace
}  // namespace snug::cuda

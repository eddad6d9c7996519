// The CUDA kernels of attention against the CPU's, which have their own tests against plain loops
// in fp64. Inputs are rounded to the kernels' type first, and the gradient gets the o and lse that
// the kernels under test computed, so that only errors of the kernels remain.
#include "ops/attention.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/check.h"
#include "cuda/cuda_test_util.h"
#include "cuda/kernels.h"
#include "ops/cuda_workspace.h"
#include "ops/dropout_mask.h"

namespace snug {
namespace {

std::vector<std::byte> to_dtype(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[4 * i], &values[i], 4);
    } else {
      const uint16_t bits =
          dtype == DType::kF16 ? float_to_half(values[i]) : float_to_bfloat16(values[i]);
      std::memcpy(&bytes[2 * i], &bits, 2);
    }
  }
  return bytes;
}
std::vector<float> to_floats(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&values[i], &bytes[4 * i], 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, &bytes[2 * i], 2);
      values[i] = dtype == DType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
    }
  }
  return values;
}

std::vector<float> random_values(size_t count, DType dtype, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return to_floats(to_dtype(values, dtype), dtype);
}

struct Case {
  AttentionSpec spec;
  DType dtype = DType::kBF16;
  std::vector<int> lengths;
  int more_tokens = 37, more_sequences = 2, more_longest = 0;  // of the bucket
  // Scores of odd queries grow by so much from one 64 keys to the next, those of even ones fall.
  // Gradients, of which little but rounding is left then, are not checked.
  float rise = 0.0f;
};

constexpr float kSumsBefore = 1.5f;  // dqkv's sums over rows are added to this

// A case's tensors on both sides.
class CaseTensors {
 public:
  CaseTensors(const Case& c, uint64_t seed)
      : c_(c),
        real_(tokens_of(c)),
        rows_(real_ + size_t(c.more_tokens)),
        hidden_(size_t(c.spec.heads * c.spec.head_dim)),
        qkv_(bytes(rows_ * 3 * hidden_)),
        o_(bytes(rows_ * hidden_)),
        lse_(rows_ * size_t(c.spec.heads) * 4),
        d_o_(bytes(rows_ * hidden_)),
        dqkv_(bytes(rows_ * 3 * hidden_)),
        sums_(3 * hidden_ * sizeof(float)),
        starts_((c.lengths.size() + size_t(c.more_sequences) + 1) * 4),
        samples_((c.lengths.size() + size_t(c.more_sequences)) * 8),
        state_(sizeof(StepState)),
        workspace_bytes_(std::max(rows_ * size_t(c.spec.heads) * sizeof(float),
                                  column_sum_bytes(int64_t(3 * hidden_), 1))),
        workspace_(workspace_bytes_) {
    std::mt19937_64 random(seed);
    qkv_values_ = random_values(real_ * 3 * hidden_, c.dtype, random);
    d_o_values_ = random_values(real_ * hidden_, c.dtype, random);
    if (c.rise != 0.0f) raise_scores();
    qkv_.upload(to_dtype(qkv_values_, c.dtype));
    d_o_.upload(to_dtype(d_o_values_, c.dtype));

    host_starts_ = {0};
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      host_starts_.push_back(host_starts_.back() + c.lengths[s]);
      host_samples_.push_back(random() % 1000 + (s % 2 ? uint64_t{7} << 32 : 0));
    }
    host_.dims = {.tokens = int64_t(real_),
                  .sequences = int64_t(c.lengths.size()),
                  .longest = *std::max_element(c.lengths.begin(), c.lengths.end())};
    host_.starts = host_starts_.data();
    host_.samples = host_samples_.data();
    auto starts = host_starts_;
    starts.resize(starts.size() + size_t(c.more_sequences), starts.back());
    starts_.upload(cuda::bytes_of(starts));
    samples_.upload(cuda::bytes_of(host_samples_));
    state_.upload(cuda::bytes_of(
        std::vector{StepState{.tokens = int32_t(real_), .sequences = int32_t(c.lengths.size())}}));
    device_.dims = {.tokens = int64_t(rows_),
                    .sequences = host_.dims.sequences + c.more_sequences,
                    .longest = host_.dims.longest + c.more_longest};
    device_.starts = static_cast<const int32_t*>(starts_.data());
    device_.samples = static_cast<const uint64_t*>(samples_.data());
  }

  void forward() {
    const Tensor in[] = {tensor(qkv_, 3 * hidden_)}, out[] = {tensor(o_, hidden_), lse_tensor()};
    cuda::launch(Attention(c_.spec), launch(in, out));
  }
  void backward() {
    const Tensor in[] = {tensor(qkv_, 3 * hidden_), tensor(o_, hidden_), lse_tensor(),
                         tensor(d_o_, hidden_)};
    const Tensor out[] = {tensor(dqkv_, 3 * hidden_),
                          {sums_.data(), DType::kF32, 1, int64_t(3 * hidden_)}};
    sums_.upload(cuda::bytes_of(std::vector<float>(3 * hidden_, kSumsBefore)));
    cuda::launch(AttentionGradient(c_.spec), launch(in, out));
  }
  void poison_outputs() {
    for (cuda::DeviceBytes* buffer : {&o_, &lse_, &dqkv_, &workspace_}) buffer->poison();
  }
  struct Results {
    std::vector<std::byte> o, lse, dqkv, sums;
    bool operator==(const Results&) const = default;
  };
  Results results() const {
    for (const cuda::DeviceBytes* buffer :
         {&qkv_, &o_, &lse_, &d_o_, &dqkv_, &sums_, &workspace_}) {
      EXPECT_TRUE(buffer->guards_intact());
    }
    return {o_.download(), lse_.download(), dqkv_.download(), sums_.download()};
  }

  // The CPU's o and lse, and the gradient from the device's o and lse.
  struct Expected {
    std::vector<float> o, lse, dqkv;
  };
  Expected expected(const Results& results) {
    Expected e;
    e.o.resize(real_ * hidden_), e.lse.resize(real_ * size_t(c_.spec.heads)),
        e.dqkv.resize(real_ * 3 * hidden_);
    std::vector<float> o = to_floats(results.o, c_.dtype),
                       lse = to_floats(results.lse, DType::kF32);
    const Tensor qkv = host_tensor(qkv_values_, 3 * hidden_),
                 d_o = host_tensor(d_o_values_, hidden_);
    const size_t heads = size_t(c_.spec.heads);
    run_on_host(*attention(c_.spec), {qkv}, {host_tensor(e.o, hidden_), host_tensor(e.lse, heads)});
    run_on_host(AttentionGradient(c_.spec),
                {qkv, host_tensor(o, hidden_), host_tensor(lse, heads), d_o},
                {host_tensor(e.dqkv, 3 * hidden_)});
    return e;
  }

  size_t real() const { return real_; }
  size_t hidden() const { return hidden_; }

 private:
  void raise_scores() {
    const float q = std::sqrt(float(c_.spec.head_dim));
    float* row = qkv_values_.data();
    for (int length : c_.lengths) {
      for (int position = 0; position < length; ++position, row += 3 * hidden_) {
        for (size_t first = 0; first < hidden_; first += size_t(c_.spec.head_dim)) {
          row[first] = position % 2 ? q : -q;
          row[hidden_ + first] = c_.rise * float(position / 64);
        }
      }
    }
    qkv_values_ = to_floats(to_dtype(qkv_values_, c_.dtype), c_.dtype);
  }
  static size_t tokens_of(const Case& c) {
    size_t sum = 0;
    for (int n : c.lengths) sum += size_t(n);
    return sum;
  }
  size_t bytes(size_t count) const { return count * dtype_bytes(c_.dtype); }
  Tensor tensor(const cuda::DeviceBytes& buffer, size_t cols) const {
    return {buffer.data(), c_.dtype, int64_t(rows_), int64_t(cols)};
  }
  Tensor lse_tensor() const { return {lse_.data(), DType::kF32, int64_t(rows_), c_.spec.heads}; }
  Tensor host_tensor(std::vector<float>& values, size_t cols) const {
    return {values.data(), DType::kF32, int64_t(real_), int64_t(cols)};
  }
  cuda::Launch launch(std::span<const Tensor> in, std::span<const Tensor> out) {
    return {.in = in,
            .out = out,
            .workspace = {static_cast<std::byte*>(workspace_.data()), workspace_bytes_},
            .batch = &device_,
            .state = static_cast<const StepState*>(state_.data()),
            .step = &step_};
  }
  void run_on_host(const Op& op, std::vector<Tensor> in, std::vector<Tensor> out) {
    const size_t size = op.workspace_bytes(
        {.dims = host_.dims, .device = {.threads = omp_get_max_threads()}, .in = {}, .out = {}});
    std::vector<std::byte> workspace(size + 64);
    const size_t skip = (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    op.run({.in = in,
            .out = out,
            .workspace = {workspace.data() + skip, size},
            .batch = &host_,
            .step = &step_});
  }

  Case c_;
  size_t real_, rows_, hidden_;
  cuda::DeviceBytes qkv_, o_, lse_, d_o_, dqkv_, sums_, starts_, samples_, state_;
  size_t workspace_bytes_;
  cuda::DeviceBytes workspace_;
  std::vector<float> qkv_values_, d_o_values_;
  std::vector<int32_t> host_starts_;
  std::vector<uint64_t> host_samples_;
  Batch host_, device_;
  StepContext step_ = {.seed = 1234567890123, .training = true};
};

double eps_of(DType dtype) {
  return dtype == DType::kBF16  ? std::ldexp(1.0, -8)
         : dtype == DType::kF16 ? std::ldexp(1.0, -11)
                                : 1e-5 / 3.0;
}

// Columns [first, first + count) of the real rows: the error's norm within 3 eps of the expected
// one's (or of a floor, for parts that cancel), and no element off by more than 8 eps of the
// largest; rows behind are zero.
void expect_near(const char* what, const std::vector<float>& got,
                 const std::vector<float>& expected, size_t rows, size_t cols, size_t first,
                 size_t count, double eps, double floor_norm, double floor_largest) {
  double error = 0.0, norm = 0.0, worst = 0.0, largest = 0.0;
  size_t worst_row = 0, worst_column = 0;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = first; column < first + count; ++column) {
      const double x = got[row * cols + column], y = expected[row * cols + column],
                   d = std::abs(x - y);
      error += d * d, norm += y * y, largest = std::max(largest, std::abs(y));
      if (!(d <= worst)) {
        worst = std::isnan(d) ? INFINITY : d, worst_row = row, worst_column = column;
      }
    }
  }
  EXPECT_LE(std::sqrt(error), 3.0 * eps * std::max(std::sqrt(norm), floor_norm))
      << what << ", norm " << std::sqrt(norm);
  EXPECT_LE(worst, 8.0 * eps * std::max(largest, floor_largest))
      << what << " at row " << worst_row << ", column " << worst_column << ": got "
      << got[worst_row * cols + worst_column] << ", expected "
      << expected[worst_row * cols + worst_column];
  size_t not_zero = 0;
  for (size_t i = rows * cols; i < got.size(); ++i) not_zero += got[i] != 0.0f;
  EXPECT_EQ(not_zero, 0u) << what << ": padding";
}

double norm_of(const std::vector<float>& values, size_t cols, size_t first) {
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += i % cols >= first ? double(values[i]) * values[i] : 0.0;
  }
  return std::sqrt(sum);
}
double largest_of(const std::vector<float>& values) {
  double most = 0.0;
  for (float v : values) most = std::max(most, double(std::abs(v)));
  return most;
}

// Sums over rows. Errors of elements do not know of each other, so that a column's error is a few
// eps of its norm (or of a floor: dk's sums cancel).
void expect_sums(const std::vector<float>& got, const std::vector<float>& dqkv, size_t cols,
                 double eps, double floor_norm) {
  for (size_t column = 0; column < cols; ++column) {
    double sum = kSumsBefore, norm = 0.0;
    for (size_t i = column; i < dqkv.size(); i += cols) {
      sum += dqkv[i], norm += double(dqkv[i]) * dqkv[i];
    }
    ASSERT_NEAR(got[column], sum, 8.0 * eps * std::max(std::sqrt(norm), floor_norm) + 1e-6)
        << "sum of column " << column;
  }
}

void check_case(const Case& c, uint64_t seed) {
  if (cuda::leaves_out_case()) return;
  testing::Message name;
  name << dtype_name(c.dtype) << ", heads " << c.spec.heads << ", head_dim " << c.spec.head_dim
       << ", causal " << c.spec.causal << ", dropout " << c.spec.dropout << ", lengths";
  for (int n : c.lengths) name << " " << n;
  SCOPED_TRACE(name);
  CaseTensors tensors(c, seed);
  tensors.forward();
  tensors.backward();
  SNUG_CUDA(cudaDeviceSynchronize());
  const auto first = tensors.results();
  tensors.poison_outputs();
  tensors.forward();
  tensors.backward();
  SNUG_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(first == tensors.results()) << "two runs differ";

  const auto expected = tensors.expected(first);
  const double eps = eps_of(c.dtype);
  const size_t hidden = tensors.hidden(), heads = size_t(c.spec.heads), rows = tensors.real();
  expect_near("o", to_floats(first.o, c.dtype), expected.o, rows, hidden, 0, hidden, eps, 0.0, 0.0);
  expect_near("lse", to_floats(first.lse, DType::kF32), expected.lse, rows, heads, 0, heads, 1e-5,
              1.0, 1.0);
  if (c.rise != 0.0f) return;
  const auto dqkv = to_floats(first.dqkv, c.dtype);
  // Alone in its sequence, a token has dq = dk = 0 but for rounding.
  const double floor_norm = 0.1 * norm_of(expected.dqkv, 3 * hidden, 2 * hidden);
  const double floor_largest = 0.1 * largest_of(expected.dqkv);
  const char* const parts[] = {"dq", "dk", "dv"};
  for (size_t part = 0; part < 3; ++part) {
    expect_near(parts[part], dqkv, expected.dqkv, rows, 3 * hidden, part * hidden, hidden, eps,
                floor_norm, floor_largest);
  }
  expect_sums(to_floats(first.sums, DType::kF32), expected.dqkv, 3 * hidden, eps,
              floor_norm / std::sqrt(double(hidden)));
}

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      GTEST_SKIP() << "no CUDA device on this machine";
    }
  }
};

void check_head_dim(int64_t head_dim) {
  const std::vector<std::vector<int>> lists = {
      {1}, {1, 2, 3, 17, 64, 65, 128, 129}, {30, 64, 7}, {9, 32}, {512, 5, 300}, {66, 4, 25, 31}};
  uint64_t seed = uint64_t(head_dim);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (bool causal : {false, true}) {
      for (float dropout : {0.0f, 0.1f}) {
        for (const auto& lengths : lists) {
          Case c = {.spec = {.heads = 2,
                             .head_dim = head_dim,
                             .dropout = dropout,
                             .site = 5,
                             .causal = causal},
                    .dtype = dtype,
                    .lengths = lengths};
          c.more_longest = ++seed % 2 ? 13 : 0;
          check_case(c, seed);
          if (testing::Test::HasFailure()) return;  // one report is enough
        }
      }
    }
  }
}

TEST_F(CudaAttention, HeadsOf64) { check_head_dim(64); }
TEST_F(CudaAttention, HeadsOf32) { check_head_dim(32); }
TEST_F(CudaAttention, HeadsOf96) { check_head_dim(96); }
TEST_F(CudaAttention, HeadsOf128) { check_head_dim(128); }
TEST_F(CudaAttention, HeadsOf40) { check_head_dim(40); }
TEST_F(CudaAttention, HeadsOf17) { check_head_dim(17); }
TEST_F(CudaAttention, HeadsOf200) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    check_case({.spec = {.heads = 1,
                         .head_dim = 200,
                         .dropout = 0.1f,
                         .site = 3,
                         .causal = dtype == DType::kF32},
                .dtype = dtype,
                .lengths = {33, 1, 70}},
               7);
  }
}

// Enough heads and sequences that a block takes a whole sequence, with several tiles of keys.
TEST_F(CudaAttention, ManySequencesOfSeveralTiles) {
  std::vector<int> lengths = {512, 300, 129, 1, 65, 200, 384, 257};
  for (int n = 20; n < 32; ++n) lengths.push_back(n);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (bool causal : {false, true}) {
      for (float dropout : {0.0f, 0.1f}) {
        check_case(
            {.spec =
                 {.heads = 12, .head_dim = 64, .dropout = dropout, .site = 77, .causal = causal},
             .dtype = dtype,
             .lengths = lengths},
            3);
      }
    }
  }
}

// Maxima of scores that change much from tile to tile, as far as exponents that overflow fp32.
TEST_F(CudaAttention, ScoresThatRise) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (float rise : {3.0f, 8.0f, 30.0f, 120.0f}) {
      for (bool causal : {false, true}) {
        check_case(
            {.spec = {.heads = 12, .head_dim = 64, .dropout = 0.1f, .site = 2, .causal = causal},
             .dtype = dtype,
             .lengths = {512, 300, 129, 1, 65, 200, 384, 257},
             .rise = rise},
            11);
      }
    }
  }
}

// Kernels compare draws in different ways.
TEST_F(CudaAttention, RatesOfDropout) {
  const double draw = 1.0 / 65536.0, most_compared = 31744.0 * draw;
  for (double rate :
       {draw, 2.0 * draw, 0.01, 0.25, most_compared, most_compared + draw, 0.5, 0.75}) {
    check_case({.spec = {.heads = 12, .head_dim = 64, .dropout = float(rate), .site = 9},
                .dtype = rate < 0.3 ? DType::kBF16 : DType::kF16,
                .lengths = {400, 300, 20, 384, 33, 512, 100, 7}},
               8);
  }
}

// Whole tiles of keys may be copied up to the last token and not beyond: whatever is there would
// not be hidden.
TEST_F(CudaAttention, LastTilesOfTheTensor) {
  for (int last : {1, 63, 64, 65, 256, 257, 319, 640, 700}) {
    for (int more_tokens : {0, 5, 100}) {
      const bool causal = (last + more_tokens) % 2;
      check_case(
          {.spec = {.heads = 12, .head_dim = 64, .dropout = 0.1f, .site = 3, .causal = causal},
           .lengths = {130, 700, 64, last},
           .more_tokens = more_tokens,
           .more_sequences = 0},
          uint64_t(last));
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_F(CudaAttention, LongSequences) {
  for (bool causal : {false, true}) {
    check_case({.spec = {.heads = 3, .head_dim = 64, .dropout = 0.1f, .site = 1, .causal = causal},
                .lengths = {1024, 700, 2}},
               4);
  }
}

TEST_F(CudaAttention, SpeedIsPrinted) {
  struct Shape {
    const char* name;
    std::vector<int> lengths;
    int64_t heads;
    bool causal;
  };
  std::vector<int> sentences;
  std::mt19937_64 random(1);
  for (int s = 0; s < 32; ++s) sentences.push_back(s == 0 ? 66 : 4 + int(random() % 46));
  const Shape shapes[] = {{"32 x 512, 12 heads", std::vector<int>(32, 512), 12, false},
                          {"32 x 128, 12 heads", std::vector<int>(32, 128), 12, false},
                          {"8 x 128, 12 heads", std::vector<int>(8, 128), 12, false},
                          {"32 sentences of 4-66, 12 heads", sentences, 12, false},
                          {"16 x 512, 16 heads", std::vector<int>(16, 512), 16, false},
                          {"4 x 1024, 12 heads, causal", std::vector<int>(4, 1024), 12, true}};
  for (const Shape& shape : shapes) {
    for (float dropout : {0.0f, 0.1f}) {
      const AttentionSpec spec = {.heads = shape.heads,
                                  .head_dim = 64,
                                  .dropout = dropout,
                                  .site = 1,
                                  .causal = shape.causal};
      CaseTensors tensors(
          {.spec = spec, .lengths = shape.lengths, .more_tokens = 0, .more_sequences = 0}, 1);
      const double forward = cuda::median_milliseconds([&] { tensors.forward(); }),
                   backward = cuda::median_milliseconds([&] { tensors.backward(); });
      double scores = 0.0;
      for (int n : shape.lengths) {
        scores += double(n) * n * double(shape.heads) * (shape.causal ? 0.5 : 1.0);
      }
      const double product = 2.0 * 64.0 * scores * 1e-9;  // GFLOP
      std::printf(
          "%-32s dropout %.1f: forward %.4f ms (%.0f TFLOP/s), backward %.4f ms (%.0f TFLOP/s)\n",
          shape.name, double(dropout), forward, 2.0 * product / forward, backward,
          5.0 * product / backward);
    }
  }
}

}  // namespace
}  // namespace snug

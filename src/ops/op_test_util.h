// What the tests of operators share: packed batches, a harness that runs an op and the backward
// nodes it emits on guarded heap buffers, comparison with fp64 references, and finite differences
// that check the references themselves.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "graph/op.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace snug {

inline constexpr double kEps = std::numeric_limits<float>::epsilon();
using Doubles = std::vector<double>;

// A batch of sequences of the given lengths with random contents.
struct PackedBatch {
  std::vector<int32_t> ids, positions, type_ids, row_of, starts, labels;
  std::vector<uint64_t> samples;
  Batch batch;

  PackedBatch(const std::vector<int>& lengths, uint64_t seed, int vocab = 50, int types = 2,
              int classes = 3) {
    std::mt19937_64 random(seed);
    starts.push_back(0);
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int t = 0; t < lengths[s]; ++t) {
        ids.push_back(int32_t(random() % uint64_t(vocab)));
        positions.push_back(t);
        type_ids.push_back(int32_t(random() % uint64_t(types)));
        row_of.push_back(int32_t(s));
      }
      starts.push_back(int32_t(ids.size()));
      labels.push_back(int32_t(random() % uint64_t(classes + 1)) - 1);
      samples.push_back((random() % 1000) + (s % 2 ? uint64_t{7} << 32 : 0));
      batch.dims.longest = std::max<int64_t>(batch.dims.longest, lengths[s]);
    }
    batch.dims.tokens = int64_t(ids.size());
    batch.dims.sequences = int64_t(lengths.size());
    batch.ids = ids.data(), batch.positions = positions.data(), batch.type_ids = type_ids.data();
    batch.row_of = row_of.data(), batch.starts = starts.data(), batch.labels = labels.data();
    batch.samples = samples.data();
  }
  PackedBatch(const PackedBatch&) = delete;

  // Labels of several words each, all sequences' behind each other.
  void set_labels(std::vector<int32_t> words) {
    labels = std::move(words);
    batch.labels = labels.data();
    batch.dims.label_words = int64_t(labels.size()) / batch.dims.sequences;
  }
};

// A tensor between two guards: NaN, so that a read past an end shows in the result, and poisoned
// under ASan.
class GuardedTensor {
 public:
  GuardedTensor(int64_t rows, int64_t cols, DType dtype) : rows_(rows), cols_(cols), dtype_(dtype) {
    bytes_ = size_t(rows * cols) * dtype_bytes(dtype);
    memory_ = std::make_unique<std::byte[]>(bytes_ + 2 * kGuard + 64);
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    data_ = memory_.get() + (64 - address % 64) % 64 + kGuard;
    for (size_t i = 0; i < kGuard; i += 4) {
      std::memcpy(data_ - kGuard + i, &kPattern, 4);
      std::memcpy(data_ + bytes_ + i, &kPattern, 4);
    }
    for (size_t i = 0; i < bytes_; i += 4) {
      std::memcpy(data_ + i, &kPattern, std::min<size_t>(4, bytes_ - i));
    }
    poison(true);
  }
  ~GuardedTensor() { poison(false); }
  GuardedTensor(const GuardedTensor&) = delete;

  Tensor tensor() const { return {data_, dtype_, rows_, cols_}; }
  bool guards_intact() {
    poison(false);
    bool intact = true;
    for (size_t i = 0; i < kGuard; i += 4) {
      intact &= std::memcmp(data_ - kGuard + i, &kPattern, 4) == 0;
      intact &= std::memcmp(data_ + bytes_ + i, &kPattern, 4) == 0;
    }
    poison(true);
    return intact;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr uint32_t kPattern = 0x7fc0dead;  // a quiet NaN
  void poison([[maybe_unused]] bool on) {
#ifdef __SANITIZE_ADDRESS__
    for (std::byte* guard : {data_ - kGuard, data_ + bytes_}) {
      on ? __asan_poison_memory_region(guard, kGuard)
         : __asan_unpoison_memory_region(guard, kGuard);
    }
#endif
  }

  int64_t rows_, cols_;
  DType dtype_;
  size_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* data_;
};

// Values, one forward node and its backward, with gradients overwritten or accumulated as the test
// asks.
class OpHarness : public GradientWriter {
 public:
  OpHarness(const Batch& batch, uint64_t seed) : batch_(batch), random_(seed) {}

  StepContext step;

  // NaN everywhere until somebody writes it.
  ValueId value(int64_t rows, int64_t cols, DType dtype = DType::kF32) {
    values_.push_back(std::make_unique<GuardedTensor>(rows, cols, dtype));
    return ValueId(values_.size() - 1);
  }
  ValueId random(int64_t rows, int64_t cols, double deviation = 1.0, double mean = 0.0) {
    const ValueId v = value(rows, cols);
    std::normal_distribution<double> normal(mean, deviation);
    const Tensor t = tensor(v);
    for (int64_t i = 0; i < t.size(); ++i) t.f32()[i] = float(normal(random_));
    return v;
  }
  ValueId filled(int64_t rows, int64_t cols, const std::vector<float>& contents) {
    const ValueId v = value(rows, cols);
    std::copy(contents.begin(), contents.end(), tensor(v).f32());
    return v;
  }

  // Gives y a random upstream gradient.
  ValueId upstream(ValueId y) {
    const Tensor t = tensor(y);
    return gradients_[y] = random(t.rows, t.cols);
  }
  // Wants the gradient of x, added to random values or overwriting NaN.
  void want(ValueId x, bool accumulate) {
    const Tensor t = tensor(x);
    const ValueId dx = accumulate ? random(t.rows, t.cols) : value(t.rows, t.cols);
    gradients_[x] = dx;
    accumulate_[x] = accumulate;
    before_[x] = accumulate ? doubles(dx) : Doubles(size_t(t.size()), 0.0);
  }

  Tensor tensor(ValueId v) const { return v == kNoValue ? Tensor() : values_[size_t(v)]->tensor(); }
  Doubles doubles(ValueId v) const {
    const Tensor t = tensor(v);
    return Doubles(t.f32(), t.f32() + t.size());
  }
  std::vector<float> floats(ValueId v) const {
    const Tensor t = tensor(v);
    return std::vector<float>(t.f32(), t.f32() + t.size());
  }
  ValueId gradient(ValueId v) const { return gradients_.at(v); }
  // What backward has added to the gradient of x.
  Doubles gained(ValueId x) const {
    Doubles gain = doubles(gradients_.at(x));
    for (size_t i = 0; i < gain.size(); ++i) gain[i] -= before_.at(x)[i];
    return gain;
  }

  void forward(const Node& node) { run(*node.op, node.inputs, node.outputs); }
  void backward(const Node& node) { node.op->backward(node, *this); }

  ValueId gradient_of(ValueId y) override {
    return gradients_.count(y) && !accumulate_.count(y) ? gradients_[y] : kNoValue;
  }
  Target gradient_for(ValueId x) override {
    if (!accumulate_.count(x)) return {};
    return {gradients_[x], accumulate_[x]};
  }
  ValueId saved(ValueId v) override { return v; }
  void emit(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) override {
    run(*op, inputs, outputs);
  }

 private:
  void run(const Op& op, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs) {
    std::vector<Tensor> in, out;
    for (ValueId v : inputs) in.push_back(tensor(v));
    for (ValueId v : outputs) out.push_back(tensor(v));
    std::vector<TensorDesc> descs;
    for (const auto* list : {&in, &out}) {
      for (const Tensor& t : *list) descs.push_back({t.dtype, Rows::kFixed, t.rows, t.cols});
    }
    const std::span<const TensorDesc> all = descs;
    const size_t bytes = op.workspace_bytes({.dims = batch_.dims,
                                             .device = {.threads = omp_get_max_threads()},
                                             .in = all.first(in.size()),
                                             .out = all.subspan(in.size())});
    GuardedTensor workspace(1, int64_t(bytes), DType::kU8);
    op.run({in, out, {static_cast<std::byte*>(workspace.tensor().data), bytes}, &batch_, &step});
    EXPECT_TRUE(workspace.guards_intact()) << op.name() << " wrote outside its workspace";
    for (auto& value : values_) {
      EXPECT_TRUE(value->guards_intact()) << op.name() << " wrote outside a tensor";
    }
  }

  const Batch& batch_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<GuardedTensor>> values_;
  std::map<ValueId, ValueId> gradients_;
  std::map<ValueId, bool> accumulate_;
  std::map<ValueId, Doubles> before_;
};

// Elementwise |got - expected| <= tolerance. NaN never passes.
inline testing::AssertionResult close(const std::string& what, const Doubles& got,
                                      const Doubles& expected, double tolerance, uint64_t seed) {
  if (got.size() != expected.size()) {
    return testing::AssertionFailure()
           << what << ": " << got.size() << " values, expected " << expected.size();
  }
  size_t worst = 0;
  double worst_error = -1.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]);
    const double rank = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    if (rank > worst_error) worst = i, worst_error = rank;
  }
  if (worst_error <= tolerance) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << what << "[" << worst << "]: got " << got[worst] << ", expected " << expected[worst]
         << ", tolerance " << tolerance << ", seed " << seed;
}

// Whether `gradients` are the derivatives of `f` at `inputs`, along one random direction in all
// inputs together. Central differences with h = 1e-5 err by about h^2 = 1e-10 times a third
// derivative, and by eps64 |f| / h = 2e-11 |f|.
inline testing::AssertionResult is_derivative(
    const std::function<double(const std::vector<Doubles>&)>& f, const std::vector<Doubles>& inputs,
    const std::vector<Doubles>& gradients, uint64_t seed) {
  constexpr double kStep = 1e-5;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Doubles> up = inputs, down = inputs;
  double along = 0.0;
  for (size_t n = 0; n < inputs.size(); ++n) {
    for (size_t i = 0; i < inputs[n].size(); ++i) {
      const double direction = normal(random);
      up[n][i] += kStep * direction;
      down[n][i] -= kStep * direction;
      along += gradients[n][i] * direction;
    }
  }
  const double value = std::abs(f(inputs)), difference = (f(up) - f(down)) / (2.0 * kStep);
  const double tolerance = 1e-6 * (1.0 + std::abs(along) + value);
  if (std::abs(difference - along) <= tolerance) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "difference quotient " << difference << ", gradient "
                                     << along << ", tolerance " << tolerance << ", seed " << seed;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline double largest(const Doubles& values) {
  double most = 0.0;
  for (double v : values) most = std::max(most, std::abs(v));
  return most;
}
// The largest Euclidean norm of a row, or of a column, of [rows, cols].
inline double largest_row_norm(const Doubles& values, size_t cols) {
  double most = 0.0;
  for (size_t i = 0; i < values.size(); i += cols) {
    double squares = 0.0;
    for (size_t c = 0; c < cols; ++c) squares += values[i + c] * values[i + c];
    most = std::max(most, squares);
  }
  return std::sqrt(most);
}
inline double largest_column_norm(const Doubles& values, size_t cols) {
  double most = 0.0;
  for (size_t c = 0; c < cols; ++c) {
    double squares = 0.0;
    for (size_t i = c; i < values.size(); i += cols) squares += values[i] * values[i];
    most = std::max(most, squares);
  }
  return std::sqrt(most);
}

// Runs the test body once for every instruction set that this machine has and the library contains.
inline void on_each_target(const std::function<void()>& body) {
  for (int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0;
       targets &= targets - 1) {
    const int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadCount() { omp_set_num_threads(before_); }

 private:
  int before_;
};

// body() returns all results of a case; they must have the same bits on one thread and on two.
inline void expect_same_on_two_threads(
    const std::function<std::vector<std::vector<float>>()>& body) {
  const auto results = [&](int threads) {
    const ThreadCount count(threads);
    return body();
  };
  const auto one = results(1), two = results(2);
  ASSERT_EQ(one.size(), two.size());
  for (size_t n = 0; n < one.size(); ++n) {
    ASSERT_EQ(one[n].size(), two[n].size());
    EXPECT_EQ(std::memcmp(one[n].data(), two[n].data(), one[n].size() * sizeof(float)), 0)
        << "result " << n;
  }
}

}  // namespace snug

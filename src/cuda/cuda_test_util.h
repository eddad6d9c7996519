// What the tests of kernels share: device memory with guards, batches padded to a bucket, and a
// harness that runs an operator on the device twice and on the CPU once, from the same rounded
// values, and compares. The CPU operators are tested against fp64 references beside them.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "cuda/device_timer.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/products.h"
#include "ops/op_test_util.h"

#define SNUG_NEEDS_GPU() \
  if (!::snug::cuda::has_gpu()) GTEST_SKIP() << "no GPU on this machine"

namespace snug::cuda {

// Both wait until the device is done: streams of the program do not wait for the default stream,
// and a fill that comes late would overwrite what a kernel has written.
inline void fill_device(void* memory, int value, size_t bytes) {
  SNUG_CUDA(cudaMemset(memory, value, bytes));
  SNUG_CUDA(cudaDeviceSynchronize());
}
inline void copy_to_device(void* to, const void* from, size_t bytes) {
  SNUG_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  SNUG_CUDA(cudaDeviceSynchronize());
}

// With SNUG_EVERY=n every nth case of a process's tests alone is run, for sanitizers and the
// emulated GPU, under which all would take hours; null: nobody watches.
inline const char* watched_cases() { return std::getenv("SNUG_EVERY"); }

// Whether a test leaves out its next case.
inline bool leaves_out_case() {
  const char* const every = watched_cases();
  static int64_t count = 0;
  return every != nullptr && count++ % std::max(1, std::atoi(every)) != 0;
}

// Cards before 8.0 have none.
inline bool has_bf16() {
  static const bool has = Gpu("cuda").has_bf16();
  return has;
}
// Types to compute in here, and the half type of those that needs no loss scale, if there is one.
inline std::vector<DType> types_here() {
  if (!has_bf16()) return {DType::kF32, DType::kF16};
  return {DType::kF32, DType::kBF16, DType::kF16};
}
inline DType half_here() { return has_bf16() ? DType::kBF16 : DType::kF16; }

inline TensorDesc tokens(DType dtype, int64_t cols) { return {dtype, Rows::kTokens, 1, cols}; }
inline TensorDesc sequences(DType dtype, int64_t cols) {
  return {dtype, Rows::kSequences, 1, cols};
}
inline TensorDesc targets(DType dtype, int64_t cols) { return {dtype, Rows::kTargets, 1, cols}; }
inline TensorDesc fixed(DType dtype, int64_t rows, int64_t cols) {
  return {dtype, Rows::kFixed, rows, cols};
}

// Every third case is a bucket that is just full.
inline Dims bucket_of(const Batch& batch, uint64_t seed) {
  Dims dims = batch.dims;
  if (seed % 3 == 0) return dims;
  dims.tokens += 5, dims.sequences += 2, dims.longest += 3;
  if (dims.targets > 0) dims.targets += 4;
  return dims;
}

// Bytes on the device between two guards. A sanitizer sees more where nothing lies behind them.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    SNUG_CUDA(cudaMalloc(&memory_, all_bytes()));
    fill_device(memory_, kPattern, all_bytes());
  }
  explicit DeviceBytes(const std::vector<std::byte>& contents) : DeviceBytes(contents.size()) {
    upload(contents);
  }
  ~DeviceBytes() { cudaFree(memory_); }
  DeviceBytes(DeviceBytes&& other) noexcept
      : bytes_(other.bytes_), memory_(std::exchange(other.memory_, nullptr)) {}
  DeviceBytes(const DeviceBytes&) = delete;

  template <class T = void>
  T* data() const {
    return static_cast<T*>(static_cast<void*>(static_cast<std::byte*>(memory_) + kGuard));
  }
  size_t size() const { return bytes_; }
  // The first bytes; those behind keep what they have, all bits set at first.
  void upload(const std::vector<std::byte>& contents) {
    ASSERT_LE(contents.size(), bytes_);
    copy_to_device(data(), contents.data(), contents.size());
  }
  void poison() { fill_device(data(), kPattern, bytes_); }
  std::vector<std::byte> download() const {
    std::vector<std::byte> contents(bytes_);
    SNUG_CUDA(cudaMemcpy(contents.data(), data(), bytes_, cudaMemcpyDeviceToHost));
    return contents;
  }
  bool guards_intact() const {
    std::vector<std::byte> all(all_bytes());
    SNUG_CUDA(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    const auto whole = [](std::byte b) { return b == std::byte(kPattern); };
    return std::all_of(all.begin(), all.begin() + kGuard, whole) &&
           std::all_of(all.begin() + ptrdiff_t(kGuard + bytes_), all.end(), whole);
  }

 private:
  static constexpr size_t kGuard = 256;  // keeps the alignment of cudaMalloc
  static constexpr int kPattern = 0xff;  // as float or half type: NaN
  size_t all_bytes() const { return kGuard + bytes_ + (watched_cases() ? 0 : kGuard); }

  size_t bytes_;
  void* memory_ = nullptr;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// SlopeBytes of whole groups, and back; as a guard's pattern: NaN.
inline std::vector<std::byte> slopes_as_bytes(const Doubles& values) {
  std::vector<uint8_t> bytes(values.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double slope = values[size_t(SlopeBytes::column(int64_t(i)))];
    bytes[i] =
        std::isnan(slope)
            ? 0xff
            : uint8_t(std::clamp(
                  std::nearbyint(slope * SlopeBytes::kStepsOfOne) + SlopeBytes::kZero, 0.0, 254.0));
  }
  return bytes_of(bytes);
}
inline Doubles slopes_of_bytes(const std::vector<std::byte>& bytes) {
  Doubles values(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    values[size_t(SlopeBytes::column(int64_t(i)))] =
        bytes[i] == std::byte(0xff)
            ? std::numeric_limits<double>::quiet_NaN()
            : (double(bytes[i]) - SlopeBytes::kZero) / SlopeBytes::kStepsOfOne;
  }
  return values;
}

// Doubles as elements of a type, and back.
inline std::vector<std::byte> encoded(const Doubles& values, DType dtype) {
  if (dtype == DType::kSlope8) return slopes_as_bytes(values);
  if (dtype == DType::kF64) return bytes_of(values);
  if (dtype == DType::kF32) return bytes_of(std::vector<float>(values.begin(), values.end()));
  if (dtype == DType::kU8) return bytes_of(std::vector<uint8_t>(values.begin(), values.end()));
  if (dtype == DType::kI8) return bytes_of(std::vector<int8_t>(values.begin(), values.end()));
  std::vector<uint16_t> halves;
  for (double v : values) {
    halves.push_back(dtype == DType::kF16 ? float_to_half(float(v)) : float_to_bfloat16(float(v)));
  }
  return bytes_of(halves);
}
inline Doubles decoded(const std::vector<std::byte>& bytes, DType dtype) {
  if (dtype == DType::kF64) return values_of<double>(bytes);
  if (dtype == DType::kSlope8) return slopes_of_bytes(bytes);
  Doubles values;
  if (dtype == DType::kF32) {
    for (float v : values_of<float>(bytes)) values.push_back(v);
  } else if (dtype == DType::kU8) {
    for (uint8_t v : values_of<uint8_t>(bytes)) values.push_back(v);
  } else if (dtype == DType::kI8) {
    for (int8_t v : values_of<int8_t>(bytes)) values.push_back(v);
  } else {
    for (uint16_t v : values_of<uint16_t>(bytes)) {
      values.push_back(dtype == DType::kF16 ? half_to_float(v) : bfloat16_to_float(v));
    }
  }
  return values;
}

// What one rounding to the type may be off, relative to the largest element; for fp32 also what
// sums in another order and other approximations of functions may.
inline double dtype_error(DType dtype) {
  if (dtype == DType::kBF16) return 1.0 / 256.0;
  if (dtype == DType::kF16) return 1.0 / 2048.0;
  if (dtype == DType::kSlope8) return 0.5 / SlopeBytes::kStepsOfOne;
  return dtype == DType::kF64 ? 1e-6 : 1e-5;
}

// A batch on the device, padded to a bucket as a captured graph sees it.
class DeviceBatch {
 public:
  DeviceBatch(const PackedBatch& packed, const Dims& bucket, float loss_scale) {
    const size_t tokens = size_t(bucket.tokens), sequences = size_t(bucket.sequences);
    std::vector<int32_t> by_id(packed.ids.size());
    std::iota(by_id.begin(), by_id.end(), 0);
    std::stable_sort(by_id.begin(), by_id.end(), [&](int32_t a, int32_t b) {
      return packed.ids[size_t(a)] < packed.ids[size_t(b)];
    });
    constexpr int32_t kNotThere = -1000000;  // must not be read
    batch.dims = bucket;
    batch.ids = place(packed.ids, tokens, kNotThere);
    batch.positions = place(packed.positions, tokens, kNotThere);
    batch.type_ids = place(packed.type_ids, tokens, kNotThere);
    batch.row_of = place(packed.row_of, tokens, kNotThere);
    batch.by_id = place(by_id, tokens, kNotThere);
    batch.starts = place(packed.starts, sequences + 1, int32_t(packed.ids.size()));
    batch.labels = place(packed.labels, sequences * size_t(bucket.label_words), -1);
    batch.samples = place(packed.samples, sequences, ~uint64_t{0});
    const auto targets = [&](const int32_t* host) {
      return place(std::vector<int32_t>(host, host + packed.batch.dims.targets),
                   size_t(bucket.targets), kNotThere);
    };
    if (packed.batch.target_rows) batch.target_rows = targets(packed.batch.target_rows);
    if (packed.batch.target_ids) batch.target_ids = targets(packed.batch.target_ids);
    state = place(std::vector<StepState>{{.tokens = int32_t(packed.ids.size()),
                                          .sequences = int32_t(packed.batch.dims.sequences),
                                          .targets = int32_t(packed.batch.dims.targets),
                                          .loss_scale = loss_scale}},
                  1, StepState());
  }

  Batch batch;
  const StepState* state = nullptr;

 private:
  template <class T>
  const T* place(std::vector<T> values, size_t count, T padding) {
    values.resize(count, padding);
    buffers_.emplace_back(bytes_of(values));
    return buffers_.back().template data<const T>();
  }
  std::vector<DeviceBytes> buffers_;
};

// A table of tensors with the same contents on the host, at the real sizes and in fp32, and on the
// device, at the bucket's sizes and in their types.
class CudaCase {
 public:
  CudaCase(const PackedBatch& packed, const Dims& bucket, uint64_t seed)
      : packed_(packed),
        bucket_(bucket),
        device_batch_(packed, bucket, kLossScale),
        seed_(seed),
        random_(seed) {
    step = {.seed = seed + 31, .training = true, .loss_scale = kLossScale};
  }

  StepContext step;
  Products* products = nullptr;  // for operators with products
  uint64_t dying = 0;            // of Launch: inputs that a launch need not leave as they are

  // Values to read. Rows that are not there are finite but must not count; `padding` says otherwise
  // for gradients.
  ValueId input(const TensorDesc& desc, const Doubles& contents, double padding = 7.0) {
    Doubles rounded = decoded(encoded(contents, desc.dtype), desc.dtype), padded = rounded;
    padded.resize(size_t(desc.row_count(bucket_) * desc.cols), padding);
    entries_.push_back(
        {desc, std::move(rounded), std::move(padded), DeviceBytes(desc.bytes(bucket_)), {}});
    return ValueId(entries_.size() - 1);
  }
  ValueId random(const TensorDesc& desc, double deviation = 1.0, double mean = 0.0,
                 double padding = 7.0) {
    std::normal_distribution<double> normal(mean, deviation);
    Doubles contents(size_t(desc.row_count(packed_.batch.dims) * desc.cols));
    for (double& v : contents) v = normal(random_);
    return input(desc, contents, padding);
  }
  // Where an op writes: NaN before.
  ValueId output(const TensorDesc& desc) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return input(desc, Doubles(size_t(desc.row_count(packed_.batch.dims) * desc.cols), nan), nan);
  }
  // Where an op writes or, to accumulate, adds.
  ValueId target(const TensorDesc& desc, bool accumulate) {
    return accumulate ? random(desc, 1.0, 0.0, 0.0) : output(desc);
  }
  // The rounded contents at the real sizes.
  const Doubles& contents(ValueId v) const { return entries_[size_t(v)].contents; }

  // Runs the op on both devices and compares all values that are written, to `slack` roundings of
  // their type or of `error` where given (outputs that add up rounded values).
  template <class OpType>
  void check(const OpType& op, const std::vector<ValueId>& in, const std::vector<ValueId>& out,
             double slack = 2.0, double error = 0.0) {
    if (leaves_out_case()) return;
    // The first launch of a product's shape times candidates, which all add to targets.
    if (products != nullptr) launch_op(op, in, out);
    const auto first = launch_op(op, in, out), second = launch_op(op, in, out);
    run_on_cpu(op, in, out);
    for (size_t n = 0; n < out.size(); ++n) {
      if (out[n] == kNoValue) continue;
      EXPECT_EQ(first[n], second[n]) << op.name() << ": two runs differ in output " << n;
      const Entry& entry = entries_[size_t(out[n])];
      const Doubles expected = host_values(entry);
      compare(std::string(op.name()) + " output " + std::to_string(n), entry,
              decoded(first[n], entry.desc.dtype), expected,
              slack * std::max(error, dtype_error(entry.desc.dtype)));
    }
  }

  // What the CPU makes of the outputs.
  std::vector<Doubles> reference(const Op& op, const std::vector<ValueId>& in,
                                 const std::vector<ValueId>& out) {
    run_on_cpu(op, in, out);
    std::vector<Doubles> results;
    for (ValueId v : out) {
      results.push_back(v == kNoValue ? Doubles() : host_values(entries_[size_t(v)]));
    }
    return results;
  }

  // Launches the op from fresh copies of the contents and returns its outputs.
  template <class OpType>
  std::vector<std::vector<std::byte>> launch_op(const OpType& op, const std::vector<ValueId>& in,
                                                const std::vector<ValueId>& out) {
    return launch_with(op, in, out, [&](const Launch& call) { launch(op, call); });
  }
  template <class F>
  std::vector<std::vector<std::byte>> launch_with(const Op& op, const std::vector<ValueId>& in,
                                                  const std::vector<ValueId>& out, const F& f) {
    for (Entry& entry : entries_) entry.device.upload(encoded(entry.padded, entry.desc.dtype));
    std::vector<Tensor> in_tensors, out_tensors;
    for (ValueId v : in) in_tensors.push_back(device_tensor(v));
    for (ValueId v : out) out_tensors.push_back(device_tensor(v));
    const auto in_descs = descs(in), out_descs = descs(out);
    const DeviceBytes workspace(
        op.workspace_bytes({bucket_, {.kind = DeviceKind::kCuda}, in_descs, out_descs}));
    f(Launch{.in = in_tensors,
             .out = out_tensors,
             .workspace = {workspace.data<std::byte>(), workspace.size()},
             .batch = &device_batch_.batch,
             .state = device_batch_.state,
             .step = &step,
             .dying = dying,
             .products = products});
    SNUG_CUDA(cudaDeviceSynchronize());
    EXPECT_TRUE(workspace.guards_intact()) << op.name() << " wrote outside its workspace";
    for (const Entry& entry : entries_) {
      EXPECT_TRUE(entry.device.guards_intact()) << op.name() << " wrote outside a tensor";
    }
    std::vector<std::vector<std::byte>> results;
    for (ValueId v : out) {
      results.push_back(v == kNoValue ? std::vector<std::byte>()
                                      : entries_[size_t(v)].device.download());
    }
    return results;
  }

  // What launch_with() left in one tensor, without padding.
  Doubles real_rows(ValueId v, const std::vector<std::byte>& got) const {
    const Entry& entry = entries_[size_t(v)];
    Doubles values = decoded(got, entry.desc.dtype);
    values.resize(entry.contents.size());
    return values;
  }

  // Compares what launch_with() left in one tensor.
  void expect(const std::string& what, ValueId v, const std::vector<std::byte>& got,
              const Doubles& expected, double tolerance) {
    const Entry& entry = entries_[size_t(v)];
    compare(what, entry, decoded(got, entry.desc.dtype), expected, tolerance);
  }

 private:
  static constexpr float kLossScale = 0.125f;
  struct Entry {
    TensorDesc desc;
    Doubles contents;  // real rows, rounded
    Doubles padded;    // the bucket's rows
    DeviceBytes device;
    std::vector<std::byte> host;  // fp32 or fp64, as the last run on the CPU left it
  };

  Tensor device_tensor(ValueId v) const {
    if (v == kNoValue) return {};
    const Entry& entry = entries_[size_t(v)];
    return {entry.device.data(), entry.desc.dtype, entry.desc.row_count(bucket_), entry.desc.cols};
  }
  std::vector<TensorDesc> descs(const std::vector<ValueId>& values) const {
    std::vector<TensorDesc> list;
    for (ValueId v : values) {
      list.push_back(v == kNoValue ? TensorDesc{.cols = 0} : entries_[size_t(v)].desc);
    }
    return list;
  }
  static DType host_dtype(DType dtype) {
    return dtype == DType::kF64 || dtype == DType::kU8 || dtype == DType::kI8 ? dtype : DType::kF32;
  }
  static Doubles host_values(const Entry& entry) {
    return decoded(entry.host, host_dtype(entry.desc.dtype));
  }

  void run_on_cpu(const Op& op, const std::vector<ValueId>& in, const std::vector<ValueId>& out) {
    for (Entry& entry : entries_) {
      entry.host = encoded(entry.contents, host_dtype(entry.desc.dtype));
    }
    const auto tensors = [&](const std::vector<ValueId>& values) {
      std::vector<Tensor> list;
      for (ValueId v : values) {
        if (v == kNoValue) {
          list.push_back({});
          continue;
        }
        Entry& entry = entries_[size_t(v)];
        list.push_back({entry.host.data(), host_dtype(entry.desc.dtype),
                        entry.desc.row_count(packed_.batch.dims), entry.desc.cols});
      }
      return list;
    };
    const auto in_tensors = tensors(in), out_tensors = tensors(out);
    const auto in_descs = descs(in), out_descs = descs(out);
    const Device cpu = {.kind = DeviceKind::kCpu, .threads = omp_get_max_threads()};
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> workspace(
        op.workspace_bytes({packed_.batch.dims, cpu, in_descs, out_descs}) / sizeof(Line) + 1);
    op.run({in_tensors, out_tensors, std::as_writable_bytes(std::span(workspace)), &packed_.batch,
            &step});
  }

  // Real rows are close, padding is zero.
  void compare(const std::string& what, const Entry& entry, const Doubles& got,
               const Doubles& expected, double relative) {
    const size_t real = expected.size();
    ASSERT_GE(got.size(), real);
    const double scale = std::max(largest(expected), 1e-2);
    EXPECT_TRUE(close(what, Doubles(got.begin(), got.begin() + ptrdiff_t(real)), expected,
                      relative * scale, seed_))
        << "relative tolerance " << relative << ", type " << dtype_name(entry.desc.dtype)
        << ", columns " << entry.desc.cols;
    const auto not_zero = std::find_if(got.begin() + ptrdiff_t(real), got.end(),
                                       [](double v) { return !(v == 0.0); });
    EXPECT_TRUE(not_zero == got.end()) << what << ": padding holds " << *not_zero << " at "
                                       << (not_zero - got.begin()) << ", real are " << real;
  }

  const PackedBatch& packed_;
  Dims bucket_;
  DeviceBatch device_batch_;
  uint64_t seed_;
  std::mt19937_64 random_;
  std::vector<Entry> entries_;
};

// The folder in which choices of products stay for other processes, so that sanitizers need not
// watch products being timed; empty: they do not.
inline std::string kept_choices() {
  const char* const folder = std::getenv("SNUG_TEST_CACHE");
  return folder ? folder : "";
}
class TestProducts : public Products {
 public:
  explicit TestProducts(const Gpu& gpu) : Products(gpu, kept_choices(), /*allow_tf32=*/false) {}
};

// Algorithms are chosen once for all tests. Stays to the end, when there may be no device any more
// to give it back to.
inline Products& shared_products() {
  static Products& products = *new TestProducts(*new Gpu("cuda"));
  return products;
}

template <class OpType>
void check_product(CudaCase& c, const OpType& op, const std::vector<ValueId>& in,
                   const std::vector<ValueId>& out, double slack, double error) {
  c.products = &shared_products();
  c.check(op, in, out, slack, error);
}

// Milliseconds that work takes on the device, the median of some runs.
template <class F>
double median_milliseconds(const F& work) {
  constexpr int kWarmups = 3, kRuns = 21;
  DeviceTimer timer(nullptr);
  std::vector<float> times;
  for (int run = 0; run < kWarmups + kRuns; ++run) {
    timer.start();
    work();
    const float time = timer.stop();
    if (run >= kWarmups) times.push_back(time);
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

// The same for work too short to time alone: captured many times over into a graph, as it runs in
// training.
template <class F>
double median_replay_milliseconds(const F& work) {
  constexpr int kTimes = 20;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  SNUG_CUDA(cudaStreamCreate(&stream));
  SNUG_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kTimes; ++i) work(stream);
  SNUG_CUDA(cudaStreamEndCapture(stream, &graph));
  SNUG_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  const double time = median_milliseconds([&] { SNUG_CUDA(cudaGraphLaunch(replay, nullptr)); });
  SNUG_CUDA(cudaGraphExecDestroy(replay));
  SNUG_CUDA(cudaGraphDestroy(graph));
  SNUG_CUDA(cudaStreamDestroy(stream));
  return time / kTimes;
}

inline void print_speed(const std::string& what, double milliseconds, double bytes) {
  std::printf("%-40s %8.4f ms %8.1f GB/s\n", what.c_str(), milliseconds,
              bytes / milliseconds * 1e-6);
}

}  // namespace snug::cuda

#include "cuda/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "cuda/check.h"
#include "cuda/gelu_product.h"
#include "cuda/gpu.h"
#include "cuda/graph_counters.h"
#include "cuda/timing_numbers.h"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

constexpr int kCandidates = 64;  // of the library's list, best guess first
constexpr int kTimedRounds = 3;  // of each; the fastest counts
constexpr int kRunsOfRound = 4;
constexpr float kHopeless = 1.2f;  // times the fastest so far: not timed any further
// Products of so many operations, one after the other, bring a large GPU to its power limit within
// some 30 ms. There those are fastest that need least energy, which few runs do not show: what
// comes near the fastest is run on for longer, and what is close then some more times in turn,
// since clocks drift.
constexpr double kHeavy = 2e10;
constexpr float kNear = 1.15f, kClose = 1.03f;
constexpr float kReachLimitMilliseconds = 30, kSettleMilliseconds = 8, kLongMilliseconds = 16;
constexpr int kTurns = 3;
// Of such products, orders in which the blocks of a result are computed, besides the algorithm's
// own: what neighbours read comes from the cache more often. The library suggests none.
constexpr uint32_t kOrders = 3;
// What clearing a workspace costs in a graph beyond what it does on a stream: kernels on both sides
// wait for it (bench/gpu.py kernels). Nothing where the graph clears all counters at its beginning.
constexpr float kFillMilliseconds = 0.004f;
constexpr int kCacheVersion = 15;
// How long a process waits for its turn to time a product, which takes seconds at most: whoever has
// it for longer was stopped, or hangs. Meanwhile it looks at what others have chosen, since who had
// the last turn may well get the next one too.
constexpr std::chrono::milliseconds kPatience(60'000), kLookEvery(50);

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_call(call, cublasLtGetStatusString(status));
}
#define SNUG_CUBLAS(call) check((call), #call)

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kI8:
      return CUDA_R_8I;
    default:
      return CUDA_R_32F;
  }
}

class Event {
 public:
  Event() { SNUG_CUDA(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  void record(cudaStream_t stream) { SNUG_CUDA(cudaEventRecord(event_, stream)); }
  float milliseconds_since(const Event& earlier) const {
    SNUG_CUDA(cudaEventSynchronize(event_));
    float milliseconds = 0;
    SNUG_CUDA(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  SNUG_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// What a run clears in a graph.
struct Fills {
  int64_t hoisted = 0;  // where it counts in a slice
  int64_t left = 0;
};
template <class F>
Fills fills_of(cudaStream_t stream, const F& work, GraphCounters* counters) {
  if (stream == nullptr) return {};  // in tests; it cannot be captured
  SNUG_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  if (counters) counters->begin();
  work();
  cudaGraph_t graph = nullptr;
  SNUG_CUDA(cudaStreamEndCapture(stream, &graph));
  Fills fills;
  fills.hoisted = counters ? counters->leading_clears(graph) : 0;
  fills.left = int64_t(fill_nodes(graph).size()) - fills.hoisted;
  SNUG_CUDA(cudaGraphDestroy(graph));
  return fills;
}

// Milliseconds of a run in the fastest of some rounds; 0 where work() returns false. Runs follow
// each other on the device as they do in a step's graph: one that is not counted keeps it busy
// meanwhile. One that is hopeless beside `best` (0: there is none) is given up early.
template <class F>
float fastest_run(cudaStream_t stream, const F& work, GraphCounters* counters, float best) {
  if (!work()) return 0;  // loads the kernel
  Event begin, end;
  const auto time = [&](int runs) {
    work();
    begin.record(stream);
    for (int run = 0; run < runs; ++run) work();
    end.record(stream);
    return end.milliseconds_since(begin) / float(runs);
  };
  float fastest = time(1);
  if (best > 0 && fastest > kHopeless * best) return fastest;
  for (int round = 0; round < kTimedRounds; ++round) {
    const float now = time(kRunsOfRound);
    fastest = round == 0 ? now : std::min(fastest, now);
  }
  return fastest + kFillMilliseconds * float(fills_of(stream, work, counters).left);
}

// Keeps the device busy with runs of `guess` milliseconds each.
template <class F>
void run_for(float milliseconds, const F& work, float guess) {
  for (float left = milliseconds; left > 0; left -= guess) work();
}

// As fastest_run(), in a long row of runs, `guess` milliseconds each, behind others of that kind.
template <class F>
float settled_run(cudaStream_t stream, const F& work, GraphCounters* counters, float guess) {
  Event begin, end;
  run_for(kSettleMilliseconds, work, guess);
  const int runs = std::max(int(kLongMilliseconds / guess), 1);
  begin.record(stream);
  for (int run = 0; run < runs; ++run) work();
  end.record(stream);
  const float time = end.milliseconds_since(begin) / float(runs);
  return time + kFillMilliseconds * float(fills_of(stream, work, counters).left);
}

Json shape_key(const ProductShape& s) {
  return {int(s.kind), int(s.dtype),     s.rows,        s.in,         s.out,
          s.bias,      s.accumulate,     int(s.layout), s.out_stride, int(s.gelu),
          s.overwrite, int(s.gelu_form), s.rounds};
}
ProductShape shape_of(const Json& entry) {
  const auto number = [&](size_t i) { return entry.at(i).get<int>(); };
  return {ProductKind(number(0)),
          DType(number(1)),
          entry.at(2),
          entry.at(3),
          entry.at(4),
          entry.at(5),
          entry.at(6),
          WeightLayout(number(7)),
          entry.at(8),
          ProductGelu(number(9)),
          entry.at(10),
          Activation(number(11)),
          entry.at(12)};
}
constexpr size_t kShapeFields = 13;

// The shape that a choice is made for. By slopes as by arguments of the erf form, which has the
// same ways: so results do not depend on which of the two is kept.
ProductShape chosen_as(ProductShape shape) {
  const bool keeps = shape.gelu == ProductGelu::kKeepsSlope;
  if (keeps) shape.gelu = ProductGelu::kKeeps;
  if (keeps || shape.gelu_form == Activation::kKeptSlope) shape.gelu_form = Activation::kGelu;
  return shape;
}

// A factor as the library sees it.
struct Factor {
  int64_t rows = 0, cols = 0, stride = 0;  // as stored, column-major
  bool transposed = false;
};

}  // namespace

bool may_fuse_gelu(const ProductShape& shape) {
  if (shape.kind == ProductKind::kWeightGradient || shape.dtype == DType::kF32) return false;
  if (shape.gelu_form != Activation::kGeluTanh || shape.gelu == ProductGelu::kKeepsSlope) {
    return false;
  }
  const int64_t cols = shape.kind == ProductKind::kForward ? shape.out : shape.in;
  return cols % 8 == 0 && shape.out_stride == 0 && !shape.accumulate;
}

// cuBLASLt's matrices are column-major, so a row-major [r, c] is its c x r with leading dimension
// c, and every product is computed transposed: the result's columns come from its first factor.
class Products::Descriptors {
 public:
  Descriptors(const ProductShape& shape, const ProductTensors& tensors, bool tf32) {
    const bool forward = shape.kind == ProductKind::kForward,
               weights = shape.kind == ProductKind::kWeightGradient;
    const bool in_out = shape.layout == WeightLayout::kInOut;
    const int64_t rows = shape.rows, in = shape.in, out = shape.out,
                  out_stride = shape.out_stride > 0 ? shape.out_stride : out;
    const cudaDataType_t type = data_type(shape.dtype);
    integers = shape.dtype == DType::kI8;
    const cublasComputeType_t floats = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    SNUG_CUBLAS(cublasLtMatmulDescCreate(&product, integers ? CUBLAS_COMPUTE_32I : floats,
                                         integers ? CUDA_R_32I : CUDA_R_32F));
    const Factor x = {in, rows, in}, y = {out, rows, out_stride},
                 w = in_out ? Factor{out, in, out} : Factor{in, out, in};
    Factor first = w, second = forward ? x : y, result = forward ? y : x;
    if (weights) {
      first = x, second = y, result = w;
      if (in_out) std::swap(first, second);  // the weight is transposed, so the product is too
      second.transposed = true;
    } else {
      first.transposed = forward != in_out;
    }
    left_first = weights && in_out;
    set(CUBLASLT_MATMUL_DESC_TRANSA, first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_epilogue(shape, tensors);
    make(a, type, first);
    make(b, type, second);
    make(c, integers ? CUDA_R_32I : weights && !shape.rounds ? CUDA_R_32F : type, result);
    alpha = tensors.scale;
    beta = (weights && !shape.overwrite) || shape.accumulate ? 1.0f : 0.0f;
  }
  ~Descriptors() {
    for (cublasLtMatrixLayout_t layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(product);
  }
  Descriptors(const Descriptors&) = delete;

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                     const ProductTensors& t, std::span<std::byte> workspace,
                     cudaStream_t stream) const {
    constexpr int32_t kOne = 1, kZero = 0;
    const void* const factor = integers ? static_cast<const void*>(&kOne) : &alpha;
    const void* const before = integers ? static_cast<const void*>(&kZero) : &beta;
    return cublasLtMatmul(handle, product, factor, left_first ? t.left : t.right, a,
                          left_first ? t.right : t.left, b, before, t.result, c, t.result, c,
                          &algorithm, workspace.data(), workspace.size(), stream);
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  float alpha = 1.0f, beta = 0.0f;
  bool integers = false;    // int8 factors, int32 results
  bool left_first = false;  // whether `left` is the library's first factor

 private:
  void set_epilogue(const ProductShape& shape, const ProductTensors& tensors) {
    int epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const auto add = [&](int part) {
      epilogue = epilogue == CUBLASLT_EPILOGUE_DEFAULT ? part : epilogue | part;
    };
    if (shape.bias) {
      add(CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, tensors.bias);
    }
    const bool gradient = shape.gelu == ProductGelu::kGradient;
    if (shape.gelu == ProductGelu::kForgets) add(CUBLASLT_EPILOGUE_GELU);
    if (shape.gelu == ProductGelu::kKeeps) add(CUBLASLT_EPILOGUE_GELU_AUX);
    if (gradient) add(CUBLASLT_EPILOGUE_DGELU);
    if (gradient || shape.gelu == ProductGelu::kKeeps) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, tensors.argument);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gradient ? shape.in : shape.out);
    }
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, cublasLtEpilogue_t(epilogue));
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    SNUG_CUBLAS(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)));
  }
  void make(cublasLtMatrixLayout_t& layout, cudaDataType_t type, const Factor& f) {
    SNUG_CUBLAS(
        cublasLtMatrixLayoutCreate(&layout, type, uint64_t(f.rows), uint64_t(f.cols), f.stride));
  }
};

Products::Products(const Gpu& gpu, std::filesystem::path cache_folder, bool allow_tf32)
    : tf32_(allow_tf32) {
  SNUG_CUBLAS(cublasLtCreate(&handle_));
  SNUG_CUBLAS(cublasLtMatmulPreferenceCreate(&preference_));
  const size_t workspace = kProductWorkspaceBytes;
  SNUG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
      preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
  // Partial sums are added in fp32: never rounded to the result's type in between.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  SNUG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
      preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)));
  if (cache_folder.empty()) return;
  std::string model = gpu.model();
  std::replace_if(
      model.begin(), model.end(),
      [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '-');
  lines_.emplace(cache_folder / fmt::format("products-{}-{}-{}{}-v{}.jsonl", model,
                                            gpu.multiprocessors(), cublasLtGetVersion(),
                                            allow_tf32 ? "-tf32" : "", kCacheVersion));
  take_in();
}

Products::~Products() {
  if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

void Products::run(const ProductShape& shape, const ProductTensors& tensors,
                   std::span<std::byte> workspace, cudaStream_t stream) {
  if (shape.rows == 0) return;
  const Descriptors descriptors(shape, tensors, tf32_for(shape));
  const Choice& chosen = choice(shape, descriptors, tensors, workspace, stream);
  check(descriptors.run(handle_, chosen.algorithm, tensors,
                        room(chosen.counter_bytes, workspace, stream), stream),
        "cublasLtMatmul");
}

std::span<std::byte> Products::room(size_t counter_bytes, std::span<std::byte> workspace,
                                    cudaStream_t stream) const {
  if (!counters_ || counter_bytes == 0 || !capturing(stream)) return workspace;
  const std::span<std::byte> slice = counters_->take(counter_bytes);
  return slice.empty() ? workspace : slice;
}

void Products::run_with_gelu(const ProductShape& shape, const ProductTensors& tensors,
                             std::span<std::byte> workspace, cudaStream_t stream,
                             const BehindProduct& behind) {
  const auto do_it = [&](Way way, PendingSums* pending) {
    ProductTensors first = tensors;
    first.pending = pending;
    if (way == Way::kOwn) return launch_gelu_product(shape, first, workspace, stream);
    if (way == Way::kLibrary) {
      run(shape, tensors, workspace, stream);
      return behind.with_gelu();
    }
    if (shape.gelu == ProductGelu::kKeeps) first.result = tensors.argument;
    ProductShape plain = shape;  // the same product, and the same bits, as where no GELU follows
    plain.gelu = ProductShape().gelu;
    plain.gelu_form = ProductShape().gelu_form;
    run(plain, first, workspace, stream);
    behind.without_gelu();
  };
  const Ways there = {.library = shape.rows > 0 && may_fuse_gelu(shape),
                      .own = has_gelu_product(shape, workspace.size())};
  const Way way = fastest_way(shape, there, tensors, workspace, stream,
                              [&](Way timed) { do_it(timed, nullptr); });
  do_it(way, tensors.pending);
}

const Products::Choice& Products::choice(const ProductShape& shape, const Descriptors& descriptors,
                                         const ProductTensors& tensors,
                                         std::span<std::byte> workspace, cudaStream_t stream) {
  const Choice* found = known(shape);
  SharedLines::Turn turn;
  if (!found) {
    SNUG_CHECK(!capturing(stream));  // shapes are met once before their graph is captured
    turn = turn_for(shape);
    found = known(shape);
  }
  if (!found) {
    const std::optional<Choice> best = measure(shape, descriptors, tensors, workspace, stream);
    if (!best) {
      fail(ErrorKind::kDevice, "cuBLASLt has no algorithm for a product of {} x {} x {} in {}",
           shape.rows, shape.in, shape.out, dtype_name(shape.dtype));
    }
    found = &remember(shape, *best);
  }
  SNUG_CHECK(found->way == Way::kLibrary);
  return *found;
}

Products::Way Products::fastest_way(const ProductShape& shape, Ways there,
                                    const ProductTensors& tensors, std::span<std::byte> workspace,
                                    cudaStream_t stream, const std::function<void(Way)>& do_it) {
  if (!there.own && !there.library) return Way::kApart;
  const ProductShape fused = chosen_as(shape);
  const auto usable = [&](const Choice* choice) {
    return choice && (there.own || choice->way != Way::kOwn);
  };
  if (const Choice* found = known(fused); usable(found)) return found->way;
  SNUG_CHECK(!capturing(stream));
  do_it(Way::kApart);  // chooses the product's algorithm, in a turn of its own
  const SharedLines::Turn turn = turn_for(fused);
  const Choice* const found = known(fused);
  if (usable(found)) return found->way;
  const bool is_new = !found;  // else it stays on disk for those who have our kernel
  std::vector<Way> ways = {Way::kApart};
  if (there.library) {
    if (const auto one = measure(fused, Descriptors(fused, tensors, tf32_for(fused)), tensors,
                                 workspace, stream)) {
      choices_[fused] = *one;  // for do_it()
      ways.push_back(Way::kLibrary);
    }
  }
  if (there.own) ways.push_back(Way::kOwn);
  give_numbers(shape, tensors, stream);
  const Fastest best =
      fastest_of(ways.size(), fused, stream, [&](size_t i) { return do_it(ways[i]), true; });
  Choice chosen = choices_[fused];
  chosen.way = ways[best.way];
  if (is_new) {
    choices_.erase(fused);
    const Choice& kept = remember(fused, chosen);
    if (usable(&kept)) return kept.way;
  }
  choices_[fused] = chosen;
  return chosen.way;
}

// Overwrites factors that are said to be free.
void Products::give_numbers(const ProductShape& shape, const ProductTensors& tensors,
                            cudaStream_t stream) const {
  if (!timing_.free_factors) return;
  const int64_t size = int64_t(dtype_bytes(shape.dtype)),
                out_stride = shape.out_stride > 0 ? shape.out_stride : shape.out;
  const int64_t x = shape.rows * shape.in, y = (shape.rows - 1) * out_stride + shape.out,
                w = shape.in * shape.out;
  const bool forward = shape.kind == ProductKind::kForward,
             weights = shape.kind == ProductKind::kWeightGradient;
  launch_timing_numbers(const_cast<void*>(tensors.left), size_t((forward ? x : y) * size), stream);
  launch_timing_numbers(const_cast<void*>(tensors.right), size_t((weights ? x : w) * size), stream);
  if (shape.gelu == ProductGelu::kGradient) {
    const int64_t kept_size = has_slope_bytes(shape) ? 1 : size;
    launch_timing_numbers(tensors.argument, size_t(x * kept_size), stream);
  }
}

Products::Fastest Products::fastest_of(size_t ways, const ProductShape& shape, cudaStream_t stream,
                                       const std::function<bool(size_t)>& do_it) const {
  std::vector<float> times(ways);
  Fastest best;
  const auto take = [&](size_t i) {
    if (times[i] > 0 && (best.milliseconds == 0 || times[i] < best.milliseconds)) {
      best = {i, times[i]};
    }
  };
  for (size_t i = 0; i < ways; ++i) {
    times[i] = fastest_run(
        stream, [&] { return do_it(i); }, counters_, best.milliseconds);
    take(i);
  }
  if (!is_heavy(shape) || best.milliseconds == 0) return best;
  const auto within = [&](float share) {
    std::vector<size_t> list;
    for (size_t i = 0; i < ways; ++i) {
      if (times[i] > 0 && times[i] <= share * best.milliseconds) list.push_back(i);
    }
    return list;
  };
  const auto settled = [&](size_t i) {
    return settled_run(
        stream, [&] { return do_it(i); }, counters_, best.milliseconds);
  };
  const std::vector<size_t> near = within(kNear);
  if (near.size() < 2) return best;
  run_for(
      kReachLimitMilliseconds, [&] { do_it(best.way); }, best.milliseconds);
  std::ranges::fill(times, 0.0f);
  for (const size_t i : near) times[i] = settled(i);
  best = {};
  for (const size_t i : near) take(i);
  const std::vector<size_t> close = within(kClose);
  if (close.size() < 2) return best;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const size_t i : close) times[i] += settled(i);
  }
  best = {};
  for (const size_t i : close) take(i);
  best.milliseconds /= 1 + kTurns;
  return best;
}

bool Products::is_heavy(const ProductShape& shape) const {
  return timing_.long_runs &&
         2.0 * double(shape.rows) * double(shape.in) * double(shape.out) >= kHeavy;
}

void Products::add_orders(const Descriptors& d,
                          std::vector<cublasLtMatmulHeuristicResult_t>& candidates) const {
  const size_t suggested = candidates.size();
  for (size_t i = 0; i < suggested; ++i) {
    for (uint32_t order = 1; order <= kOrders; ++order) {
      cublasLtMatmulAlgo_t algorithm = candidates[i].algo;
      cublasLtMatmulHeuristicResult_t other = {};
      if (cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                                               &order, sizeof(order)) == CUBLAS_STATUS_SUCCESS &&
          cublasLtMatmulAlgoCheck(handle_, d.product, d.a, d.b, d.c, d.c, &algorithm, &other) ==
              CUBLAS_STATUS_SUCCESS) {
        other.algo = algorithm;
        candidates.push_back(other);
      }
    }
  }
}

std::optional<Products::Choice> Products::measure(const ProductShape& shape, const Descriptors& d,
                                                  const ProductTensors& tensors,
                                                  std::span<std::byte> workspace,
                                                  cudaStream_t stream) const {
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(kCandidates);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, d.product, d.a, d.b, d.c, d.c, preference_, kCandidates, candidates.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  candidates.resize(size_t(count));
  if (is_heavy(shape)) add_orders(d, candidates);
  give_numbers(shape, tensors, stream);
  const auto counter_bytes = [&](size_t i) {
    const size_t bytes = candidates[i].workspaceSize;
    return bytes <= GraphCounters::kMostBytes ? bytes : 0;
  };
  const auto do_it = [&](size_t i) {
    const auto& candidate = candidates[i];
    if (candidate.state != CUBLAS_STATUS_SUCCESS || candidate.workspaceSize > workspace.size()) {
      return false;
    }
    return d.run(handle_, candidate.algo, tensors, room(counter_bytes(i), workspace, stream),
                 stream) == CUBLAS_STATUS_SUCCESS;
  };
  const Fastest best = fastest_of(candidates.size(), shape, stream, do_it);
  if (best.milliseconds == 0) return std::nullopt;
  Choice chosen{.algorithm = candidates[best.way].algo,
                .workspace_bytes = candidates[best.way].workspaceSize};
  bool done = false;
  const Fills fills = fills_of(
      stream, [&] { done = do_it(best.way); }, counters_);
  if (done && fills.hoisted == 1 && fills.left == 0) chosen.counter_bytes = counter_bytes(best.way);
  return chosen;
}

size_t Products::workspace_bytes(const ProductShape& shape) const {
  const Choice* const found = known(shape);
  return found ? found->workspace_bytes : 0;
}

const Products::Choice* Products::known(const ProductShape& shape) const {
  const auto found = choices_.find(shape);
  return found == choices_.end() ? nullptr : &found->second;
}

// The file is a convenience: a line that is no choice counts for nothing. Of two for one shape the
// first counts, so that who used it gets the same bits again.
void Products::take_in() {
  if (!lines_) return;
  for (const std::string& line : lines_->fresh()) {
    try {
      const Json entry = Json::parse(line);
      const int way = entry.at(kShapeFields);
      if (way < int(Way::kApart) || way > int(Way::kOwn)) continue;
      Choice choice{.way = Way(way), .counter_bytes = entry.at(kShapeFields + 1)};
      for (size_t i = 0; i < std::size(choice.algorithm.data); ++i) {
        choice.algorithm.data[i] = entry.at(kShapeFields + 2 + i).get<uint64_t>();
      }
      choices_.try_emplace(shape_of(entry), choice);
    } catch (const Json::exception&) {
      continue;
    }
  }
}

SharedLines::Turn Products::turn_for(const ProductShape& shape) {
  SharedLines::Turn turn;
  if (!lines_) return turn;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + kPatience;
  for (bool again = true; again;) {
    const auto start = Clock::now();
    turn = lines_->hold(kLookEvery);
    const auto now = Clock::now();
    take_in();
    // It comes back sooner where the file system knows no locks.
    again = !turn.held() && !known(shape) && now - start >= kLookEvery && now < end;
  }
  return turn;
}

const Products::Choice& Products::remember(const ProductShape& shape, const Choice& measured) {
  if (lines_) {
    Json entry = shape_key(shape);
    entry.push_back(int(measured.way));
    entry.push_back(measured.counter_bytes);
    for (const uint64_t word : measured.algorithm.data) entry.push_back(word);
    lines_->add(entry.dump());
    take_in();  // without a turn another may have been first
  }
  Choice& kept = choices_.try_emplace(shape, measured).first->second;
  // What is not on disk, where the line is ours or says the same.
  if (std::ranges::equal(kept.algorithm.data, measured.algorithm.data)) {
    kept.workspace_bytes = measured.workspace_bytes;
  }
  return kept;
}

}  // namespace snug::cuda

#include "cuda/products.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "cuda/check.h"
#include "cuda/fastest.h"
#include "cuda/gelu_product.h"
#include "cuda/gpu.h"
#include "cuda/graph_counters.h"
#include "cuda/timing_numbers.h"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

constexpr int kCandidates = 64;  // of the library's list, best guess first
// Products of so many operations are timed at the power limit, if they are a part of long runs.
constexpr double kHeavy = 2e10;
// Of these, orders in which the blocks of a result are computed, besides the algorithm's own: what
// neighbours read comes from the cache more often. The library suggests none.
constexpr uint32_t kOrders = 3;
constexpr int kCacheVersion = 16;

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

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  SNUG_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// The shape that a choice is made for. By slopes as by arguments of the erf form, which has the
// same ways: so results do not depend on which of the two is kept.
ProductShape chosen_as(ProductShape shape) {
  const bool keeps = shape.gelu == ProductGelu::kKeepsSlope;
  if (keeps) shape.gelu = ProductGelu::kKeeps;
  if (keeps || shape.gelu_form == Activation::kKeptSlope) shape.gelu_form = Activation::kGelu;
  return shape;
}

std::optional<std::filesystem::path> choices_file(const Gpu& gpu,
                                                  const std::filesystem::path& folder,
                                                  bool allow_tf32) {
  if (folder.empty()) return std::nullopt;
  std::string model = gpu.model();
  std::replace_if(
      model.begin(), model.end(),
      [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '-');
  return folder / fmt::format("products-{}-{}-{}{}-v{}.jsonl", model, gpu.multiprocessors(),
                              cublasLtGetVersion(), allow_tf32 ? "-tf32" : "", kCacheVersion);
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
  Descriptors(const ProductShape& shape, const ProductTensors& tensors, bool allow_tf32) {
    const bool forward = shape.kind == ProductKind::kForward,
               weights = shape.kind == ProductKind::kWeightGradient;
    const bool in_out = shape.layout == WeightLayout::kInOut;
    const int64_t rows = shape.rows, in = shape.in, out = shape.out,
                  out_stride = shape.out_stride > 0 ? shape.out_stride : out;
    const cudaDataType_t type = data_type(shape.dtype);
    integers = shape.dtype == DType::kI8;
    const cublasComputeType_t floats = allow_tf32 && shape.dtype == DType::kF32
                                           ? CUBLAS_COMPUTE_32F_FAST_TF32
                                           : CUBLAS_COMPUTE_32F;
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

Products::Products(const Gpu& gpu, const std::filesystem::path& cache_folder, bool allow_tf32)
    : tf32_(allow_tf32), choices_(choices_file(gpu, cache_folder, allow_tf32)) {
  SNUG_CUBLAS(cublasLtCreate(&handle_));
  SNUG_CUBLAS(cublasLtMatmulPreferenceCreate(&preference_));
  const size_t workspace = kProductWorkspaceBytes;
  SNUG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
      preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
  // Partial sums are added in fp32: never rounded to the result's type in between.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  SNUG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
      preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)));
}

Products::~Products() {
  if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

void Products::run(const ProductShape& shape, const ProductTensors& tensors,
                   std::span<std::byte> workspace, cudaStream_t stream) {
  if (shape.rows == 0) return;
  const Descriptors descriptors(shape, tensors, tf32_);
  const ProductAlgorithm* const chosen = algorithm(shape, descriptors, tensors, workspace, stream);
  if (!chosen) {
    fail(ErrorKind::kDevice, "cuBLASLt has no algorithm for a product of {} x {} x {} in {}",
         shape.rows, shape.in, shape.out, dtype_name(shape.dtype));
  }
  check(descriptors.run(handle_, chosen->algorithm, tensors,
                        room(chosen->counter_bytes, workspace, stream), stream),
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
  const auto do_it = [&](ProductWay way, PendingSums* pending) {
    ProductTensors first = tensors;
    first.pending = pending;
    if (way == ProductWay::kOwn) return launch_gelu_product(shape, first, workspace, stream);
    if (way == ProductWay::kLibrary) {
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
  const ProductWay way = fastest_way(shape, tensors, workspace, stream,
                                     [&](ProductWay timed) { do_it(timed, nullptr); });
  do_it(way, tensors.pending);
}

const ProductAlgorithm* Products::algorithm(const ProductShape& shape,
                                            const Descriptors& descriptors,
                                            const ProductTensors& tensors,
                                            std::span<std::byte> workspace, cudaStream_t stream) {
  if (const ProductAlgorithm* const known = choices_.algorithm(shape)) return known;
  SNUG_CHECK(!capturing(stream));  // shapes are met once before their graph is captured
  const SharedLines::Turn turn = choices_.turn([&] { return choices_.algorithm(shape); });
  if (const ProductAlgorithm* const known = choices_.algorithm(shape)) return known;
  const auto best = measure(shape, descriptors, tensors, workspace, stream);
  return best ? &choices_.keep(shape, *best) : nullptr;
}

ProductWay Products::fastest_way(const ProductShape& shape, const ProductTensors& tensors,
                                 std::span<std::byte> workspace, cudaStream_t stream,
                                 const std::function<void(ProductWay)>& do_it) {
  const bool library = shape.rows > 0 && may_fuse_gelu(shape),
             own = has_gelu_product(shape, workspace.size());
  if (!library && !own) return ProductWay::kApart;
  const FusedProduct fused = {chosen_as(shape), own};
  if (const ProductWay* const known = choices_.way(fused)) return *known;
  SNUG_CHECK(!capturing(stream));
  // The library's algorithms are chosen first, each in a turn of its own.
  do_it(ProductWay::kApart);
  std::vector<ProductWay> ways = {ProductWay::kApart};
  if (library) {
    const Descriptors descriptors(shape, tensors, tf32_);
    if (algorithm(shape, descriptors, tensors, workspace, stream)) {
      ways.push_back(ProductWay::kLibrary);
    }
  }
  if (own) ways.push_back(ProductWay::kOwn);
  const SharedLines::Turn turn = choices_.turn([&] { return choices_.way(fused); });
  if (const ProductWay* const known = choices_.way(fused)) return *known;
  give_numbers(shape, tensors, stream);
  const Fastest best = fastest_of(ways.size(), contest(shape, stream),
                                  [&](size_t i) { return do_it(ways[i]), true; });
  return choices_.keep(fused, ways[best.way]);
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

Contest Products::contest(const ProductShape& shape, cudaStream_t stream) const {
  const double operations = 2.0 * double(shape.rows) * double(shape.in) * double(shape.out);
  return {.stream = stream,
          .counters = counters_,
          .at_power_limit = timing_.long_runs && operations >= kHeavy};
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

std::optional<ProductAlgorithm> Products::measure(const ProductShape& shape, const Descriptors& d,
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
  const Contest contest = this->contest(shape, stream);
  if (contest.at_power_limit) add_orders(d, candidates);
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
  const Fastest best = fastest_of(candidates.size(), contest, do_it);
  if (best.milliseconds == 0) return std::nullopt;
  ProductAlgorithm chosen{.algorithm = candidates[best.way].algo};
  bool done = false;
  const Fills fills = fills_of(
      stream, [&] { done = do_it(best.way); }, counters_);
  if (done && fills.hoisted == 1 && fills.left == 0) chosen.counter_bytes = counter_bytes(best.way);
  return chosen;
}

}  // namespace snug::cuda

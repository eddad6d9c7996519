#include "cuda/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "cuda/check.h"
#include "cuda/gpu.h"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

constexpr int kCandidates = 24;   // of the library's list, best guess first
constexpr int kTimedRuns = 5;     // of each; the fastest counts
constexpr int kCacheVersion = 3;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_call(call, cublasLtGetStatusString(status));
}
#define SNUG_CUBLAS(call) check((call), #call)

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF16: return CUDA_R_16F;
    default: return CUDA_R_32F;
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

Json shape_key(const ProductShape& s) {
  return {int(s.kind), int(s.dtype), s.rows, s.in, s.out, s.bias, s.accumulate};
}

}  // namespace

// cuBLASLt's matrices are column-major, so a row-major [r, c] is its c x r with leading dimension c, and every product
// is computed transposed.
class Products::Descriptors {
 public:
  Descriptors(const ProductShape& shape, const ProductTensors& tensors, bool tf32) {
    const bool forward = shape.kind == ProductKind::kForward, weights = shape.kind == ProductKind::kWeightGradient;
    const cudaDataType_t type = data_type(shape.dtype);
    SNUG_CUBLAS(cublasLtMatmulDescCreate(&product, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t first = forward ? CUBLAS_OP_T : CUBLAS_OP_N, second = weights ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second);
    if (shape.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, tensors.bias);
    }
    // a and b in the library's order; what is `right` to us comes first.
    make(a, type, shape.in, weights ? shape.rows : shape.out);
    make(b, type, forward ? shape.in : shape.out, shape.rows);
    if (forward) make(c, type, shape.out, shape.rows);
    else if (weights) make(c, CUDA_R_32F, shape.in, shape.out);
    else make(c, type, shape.in, shape.rows);
    beta = weights || shape.accumulate ? 1.0f : 0.0f;
  }
  ~Descriptors() {
    for (cublasLtMatrixLayout_t layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(product);
  }
  Descriptors(const Descriptors&) = delete;

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, const ProductTensors& t,
                     std::span<std::byte> workspace, cudaStream_t stream) const {
    return cublasLtMatmul(handle, product, &alpha, t.right, a, t.left, b, &beta, t.result, c, t.result, c, &algorithm,
                          workspace.data(), workspace.size(), stream);
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  float alpha = 1.0f, beta = 0.0f;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    SNUG_CUBLAS(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)));
  }
  void make(cublasLtMatrixLayout_t& layout, cudaDataType_t type, int64_t rows, int64_t cols) {
    SNUG_CUBLAS(cublasLtMatrixLayoutCreate(&layout, type, uint64_t(rows), uint64_t(cols), rows));
  }
};

Products::Products(const Gpu& gpu, std::filesystem::path cache_folder, bool allow_tf32) : tf32_(allow_tf32) {
  SNUG_CUBLAS(cublasLtCreate(&handle_));
  SNUG_CUBLAS(cublasLtMatmulPreferenceCreate(&preference_));
  const size_t workspace = kProductWorkspaceBytes;
  SNUG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                   sizeof(workspace)));
  // Partial sums are added in fp32: never rounded to the result's type in between.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  SNUG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                   sizeof(reductions)));
  if (cache_folder.empty()) return;
  std::string model = gpu.model();
  std::replace_if(model.begin(), model.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '-');
  cache_file_ = cache_folder / fmt::format("products-{}-{}-{}{}.json", model, gpu.multiprocessors(), cublasLtGetVersion(),
                                           allow_tf32 ? "-tf32" : "");
  load();
}

Products::~Products() {
  if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

void Products::run(const ProductShape& shape, const ProductTensors& tensors, std::span<std::byte> workspace,
                   cudaStream_t stream) {
  if (shape.rows == 0) return;
  const Descriptors descriptors(shape, tensors, tf32_ && shape.dtype == DType::kF32);
  const Choice& chosen = choice(shape, descriptors, tensors, workspace, stream);
  SNUG_CUBLAS(descriptors.run(handle_, chosen.algorithm, tensors, workspace, stream));
}

const Products::Choice& Products::choice(const ProductShape& shape, const Descriptors& descriptors,
                                         const ProductTensors& tensors, std::span<std::byte> workspace,
                                         cudaStream_t stream) {
  const auto found = choices_.find(shape);
  if (found != choices_.end()) return found->second;
  SNUG_CHECK(!capturing(stream));  // shapes are met once before their graph is captured
  changed_ = true;
  return choices_[shape] = measure(shape, descriptors, tensors, workspace, stream);
}

Products::Choice Products::measure(const ProductShape& shape, const Descriptors& d, const ProductTensors& tensors,
                                   std::span<std::byte> workspace, cudaStream_t stream) const {
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(kCandidates);
  int count = 0;
  SNUG_CUBLAS(cublasLtMatmulAlgoGetHeuristic(handle_, d.product, d.a, d.b, d.c, d.c, preference_, kCandidates,
                                             candidates.data(), &count));
  Choice best;
  Event begin, end;
  for (int i = 0; i < count; ++i) {
    const auto& candidate = candidates[size_t(i)];
    if (candidate.state != CUBLAS_STATUS_SUCCESS || candidate.workspaceSize > workspace.size()) continue;
    float fastest = 0;
    for (int run = -1; run < kTimedRuns; ++run) {  // the first one loads the kernel
      begin.record(stream);
      if (d.run(handle_, candidate.algo, tensors, workspace, stream) != CUBLAS_STATUS_SUCCESS) break;
      end.record(stream);
      const float time = end.milliseconds_since(begin);
      if (run == 0 || (run > 0 && time < fastest)) fastest = time;
    }
    if (fastest > 0 && (best.milliseconds == 0 || fastest < best.milliseconds)) best = {candidate.algo, fastest};
  }
  if (best.milliseconds == 0) {
    fail(ErrorKind::kDevice, "cuBLASLt has no algorithm for a product of {} x {} x {} in {}", shape.rows, shape.in, shape.out,
         dtype_name(shape.dtype));
  }
  return best;
}

// The file is a convenience: one that cannot be read counts as empty.
void Products::load() {
  if (!std::filesystem::exists(cache_file_)) return;
  try {
    const Json json = Json::parse(read_small_file(cache_file_));
    if (json.at("version") != kCacheVersion) return;
    for (const Json& entry : json.at("products")) {
      const ProductShape shape{ProductKind(entry.at(0).get<int>()), DType(entry.at(1).get<int>()), entry.at(2), entry.at(3),
                               entry.at(4), entry.at(5), entry.at(6)};
      Choice choice;
      for (size_t i = 0; i < std::size(choice.algorithm.data); ++i) choice.algorithm.data[i] = entry.at(7 + i).get<uint64_t>();
      choices_[shape] = choice;
    }
  } catch (const Json::exception&) {
    choices_.clear();
  }
}

void Products::save() const {
  if (!changed_ || cache_file_.empty()) return;
  Json entries = Json::array();
  for (const auto& [shape, choice] : choices_) {
    Json entry = shape_key(shape);
    for (const uint64_t word : choice.algorithm.data) entry.push_back(word);
    entries.push_back(std::move(entry));
  }
  make_directories(cache_file_.parent_path());
  write_file_atomically(cache_file_, Json{{"version", kCacheVersion}, {"products", std::move(entries)}}.dump() + "\n");
}

}  // namespace snug::cuda

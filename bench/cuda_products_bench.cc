// What the GPU's memory is spent on before snug asks for any, and the products of BERT's layers by cuBLASLt: one JSON
// line each.
#include <fmt/format.h>

#include <vector>

#include "core/error.h"
#include "cuda/check.h"
#include "cuda/gpu.h"
#include "cuda/products.h"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

void print_memory(const Gpu& gpu, const char* when) {
  fmt::print("{{\"memory\": \"{}\", \"process_bytes\": {}, \"neighbours\": {}}}\n", when, gpu.process_bytes(),
             gpu.neighbours_bytes());
}

float time_product(Products& products, const ProductShape& shape, std::byte* buffer, cudaStream_t stream) {
  std::byte* const left = buffer;
  std::byte* const right = left + (size_t{256} << 20);
  std::byte* const result = right + (size_t{256} << 20);
  std::byte* const bias = result + (size_t{256} << 20);
  const std::span<std::byte> workspace(bias + (size_t{1} << 20), kProductWorkspaceBytes);
  const ProductTensors tensors{left, right, shape.bias ? bias : nullptr, result};
  products.run(shape, tensors, workspace, stream);
  cudaEvent_t begin, end;
  SNUG_CUDA(cudaEventCreate(&begin));
  SNUG_CUDA(cudaEventCreate(&end));
  constexpr int kRuns = 20;
  SNUG_CUDA(cudaEventRecord(begin, stream));
  for (int i = 0; i < kRuns; ++i) products.run(shape, tensors, workspace, stream);
  SNUG_CUDA(cudaEventRecord(end, stream));
  SNUG_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  SNUG_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  return milliseconds / kRuns;
}

void run() {
  const Gpu gpu("cuda");
  print_memory(gpu, "context");
  Products products(gpu, {}, false);
  print_memory(gpu, "cublasLt handle");
  std::byte* buffer = nullptr;
  const size_t bytes = (size_t{768} << 20) + (size_t{1} << 20) + kProductWorkspaceBytes;
  SNUG_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), bytes));
  // Small random-looking bf16 numbers: zeros run faster than real data.
  std::vector<uint16_t> values(bytes / 2);
  uint32_t state = 1;
  for (uint16_t& v : values) v = uint16_t(0x3c00 | ((state = state * 1664525u + 1013904223u) >> 16 & 0x81ff));
  SNUG_CUDA(cudaMemcpy(buffer, values.data(), bytes, cudaMemcpyHostToDevice));
  print_memory(gpu, fmt::format("{} bytes taken", bytes).c_str());
  for (const auto& [hidden, all_rows] :
       std::vector<std::pair<int64_t, std::vector<int64_t>>>{{768, {768, 1024, 4096, 16384}}, {1024, {8192}}}) {
    for (const int64_t rows : all_rows) {
      double layer = 0;
      for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
               {hidden, 3 * hidden}, {hidden, hidden}, {hidden, 4 * hidden}, {4 * hidden, hidden}}) {
        for (const ProductKind kind : {ProductKind::kForward, ProductKind::kInputGradient, ProductKind::kWeightGradient}) {
          const ProductShape shape{kind, DType::kBF16, rows, in, out, kind == ProductKind::kForward, false};
          const float time = time_product(products, shape, buffer, gpu.stream());
          layer += time;
          fmt::print("{{\"product\": {}, \"rows\": {}, \"in\": {}, \"out\": {}, \"ms\": {:.4f}, \"tflops\": {:.0f}}}\n", int(kind),
                     rows, in, out, time, 2e-9 * double(rows * in * out) / time);
        }
      }
      fmt::print("{{\"layer\": {}, \"rows\": {}, \"ms\": {:.4f}}}\n", hidden, rows, layer);
    }
    print_memory(gpu, "products of one width");
  }
  const ProductShape small{ProductKind::kForward, DType::kBF16, 32, 768, 2, true, false};
  fmt::print("{{\"classifier\": {:.4f}}}\n", time_product(products, small, buffer, gpu.stream()));
  const ProductShape f32{ProductKind::kForward, DType::kF32, 1024, 768, 768, true, false};
  fmt::print("{{\"fp32\": {:.4f}}}\n", time_product(products, f32, buffer, gpu.stream()));
  print_memory(gpu, "end");
}

}  // namespace
}  // namespace snug::cuda

int main() {
  try {
    snug::cuda::run();
  } catch (const snug::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return int(error.kind());
  }
}

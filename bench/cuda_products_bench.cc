// What the GPU's memory is spent on before snug asks for any, the products of BERT's layers by
// cuBLASLt, with what their algorithms clear in a graph, and the ways to do GELU behind them: one
// JSON line each. With "gelu" as argument the last only.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "cuda/check.h"
#include "cuda/device_timer.h"
#include "cuda/gelu_product.h"
#include "cuda/gpu.h"
#include "cuda/graph_counters.h"
#include "cuda/kernels.h"
#include "cuda/products.h"
#include "ops/cuda_workspace.h"
#include "plan/gpu.h"

namespace snug::cuda {
namespace {

void print_memory(const Gpu& gpu, const char* when) {
  fmt::print("{{\"memory\": \"{}\", \"process_bytes\": {}, \"neighbours\": {}}}\n", when,
             gpu.process_bytes(), gpu.neighbours_bytes());
}

// Device memory for the operands of any product here.
struct Operands {
  static constexpr size_t kLarge = size_t{256} << 20, kSmall = size_t{1} << 20;
  static constexpr size_t kBytes = 4 * kLarge + 2 * kSmall + kProductWorkspaceBytes + kCounterBytes;

  explicit Operands(std::byte* memory)
      : left(memory),
        right(left + kLarge),
        result(right + kLarge),
        argument(result + kLarge),
        bias(argument + kLarge),
        sums(bias + kSmall),
        workspace(sums + kSmall, kProductWorkspaceBytes),
        counters(sums + kSmall + kProductWorkspaceBytes, kCounterBytes) {}

  std::byte *left, *right, *result, *argument, *bias, *sums;
  std::span<std::byte> workspace, counters;
};

// Milliseconds, the best of some rounds.
template <class F>
float time_of(cudaStream_t stream, const F& work) {
  DeviceTimer timer(stream);
  constexpr int kRounds = 3, kRuns = 20;
  float best = 0;
  work();
  for (int round = 0; round < kRounds; ++round) {
    timer.start();
    for (int i = 0; i < kRuns; ++i) work();
    const float milliseconds = timer.stop();
    best = round == 0 ? milliseconds : std::min(best, milliseconds);
  }
  return best / kRuns;
}

ProductTensors tensors_of(const ProductShape& shape, const Operands& o) {
  return {o.left, o.right, shape.bias ? o.bias : nullptr, o.result};
}

float time_product(Products& products, const ProductShape& shape, const Operands& o,
                   cudaStream_t stream) {
  return time_of(stream, [&] { products.run(shape, tensors_of(shape, o), o.workspace, stream); });
}

// What a product that was timed before clears in a graph: bytes of each clear, and how many are
// taken out.
struct Clears {
  std::vector<size_t> bytes;
  int64_t hoisted = 0;
};
Clears clears_of(Products& products, const ProductShape& shape, const Operands& o,
                 GraphCounters& counters, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  counters.begin();
  SNUG_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  products.run(shape, tensors_of(shape, o), o.workspace, stream);
  SNUG_CUDA(cudaStreamEndCapture(stream, &graph));
  Clears clears;
  for (const cudaGraphNode_t node : fill_nodes(graph)) clears.bytes.push_back(fill_bytes(node));
  clears.hoisted = counters.hoist_clears(graph);
  SNUG_CUDA(cudaGraphDestroy(graph));
  return clears;
}

// Every way to do a product and GELU behind it, or GELU's gradient and the sums over rows.
void time_gelu(Products& products, const ProductShape& plain, const Operands& o,
               cudaStream_t stream) {
  const bool gradient = plain.kind == ProductKind::kInputGradient;
  const int64_t cols = gradient ? plain.in : plain.out;
  const Tensor result{o.result, plain.dtype, plain.rows, cols},
      argument{o.argument, plain.dtype, plain.rows, cols};
  const Tensor sums{o.sums, DType::kF32, 1, cols};
  const auto print = [&](const std::string& way, float ms) {
    fmt::print(
        "{{\"gelu\": \"{}\", \"layout\": {}, \"rows\": {}, \"in\": {}, \"out\": {}, \"way\": "
        "\"{}\", \"ms\": {:.4f}, "
        "\"tflops\": {:.0f}}}\n",
        gradient ? "gradient" : "forward", int(plain.layout), plain.rows, plain.in, plain.out, way,
        ms, 2e-9 * double(plain.rows * plain.in * plain.out) / ms);
  };
  ProductTensors tensors{o.left, o.right, plain.bias ? o.bias : nullptr, o.result};
  const float alone = time_product(products, plain, o, stream);
  print("product alone", alone);
  const auto behind = [&](Activation activation) {
    if (!gradient) {
      return launch_activation(activation, argument, result,
                               {.in = {}, .out = {}, .workspace = {}, .stream = stream});
    }
    const Tensor in[] = {result, argument}, out[] = {result, sums};
    launch(LinearEpilogueGradient(activation),
           {.in = in, .out = out, .workspace = o.workspace, .stream = stream});
  };
  for (const Activation form : {Activation::kGelu, Activation::kGeluTanh}) {
    print(form == Activation::kGelu ? "apart, erf" : "apart, tanh", time_of(stream, [&] {
            products.run(plain, tensors, o.workspace, stream);
            behind(form);
          }));
  }
  ProductShape fused = plain;
  fused.gelu = gradient ? ProductGelu::kGradient : ProductGelu::kKeeps;
  tensors.argument = o.argument;
  print("library, tanh", time_of(stream, [&] {
          products.run(fused, tensors, o.workspace, stream);
          if (gradient) behind(Activation::kNone);
        }));
  if (!has_gelu_product(fused, o.workspace.size())) return;
  if (gradient) tensors.column_sums = reinterpret_cast<float*>(o.sums);
  print("own, tanh",
        time_of(stream, [&] { launch_gelu_product(fused, tensors, o.workspace, stream); }));
  fused.gelu_form = Activation::kGelu;
  print("own, erf",
        time_of(stream, [&] { launch_gelu_product(fused, tensors, o.workspace, stream); }));
  tensors.column_sums = nullptr;
  fused.gelu = gradient ? ProductGelu::kGradient : ProductGelu::kForgets;
  if (!gradient) tensors.argument = nullptr;
  print(gradient ? "own, erf, without sums" : "own, erf, argument not kept",
        time_of(stream, [&] { launch_gelu_product(fused, tensors, o.workspace, stream); }));
}

void run_gelu(Products& products, const Operands& operands, cudaStream_t stream) {
  for (const auto& [rows, hidden] :
       {std::pair<int64_t, int64_t>{16384, 768}, {8192, 1024}, {1024, 768}}) {
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      ProductShape shape{.kind = ProductKind::kForward,
                         .dtype = DType::kBF16,
                         .rows = rows,
                         .in = hidden,
                         .out = 4 * hidden,
                         .bias = true,
                         .layout = layout};
      time_gelu(products, shape, operands, stream);
      shape = {.kind = ProductKind::kInputGradient,
               .dtype = DType::kBF16,
               .rows = rows,
               .in = 4 * hidden,
               .out = hidden,
               .layout = layout};
      time_gelu(products, shape, operands, stream);
    }
  }
}

void run(bool gelu_only) {
  const Gpu gpu("cuda");
  print_memory(gpu, "context");
  Products products(gpu, {}, false);
  print_memory(gpu, "cublasLt handle");
  std::byte* buffer = nullptr;
  const size_t bytes = Operands::kBytes;
  SNUG_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), bytes));
  // Small random-looking bf16 numbers: zeros run faster than real data.
  std::vector<uint16_t> values(bytes / 2);
  uint32_t state = 1;
  for (uint16_t& v : values) {
    v = uint16_t(0x3c00 | ((state = state * 1664525u + 1013904223u) >> 16 & 0x81ff));
  }
  SNUG_CUDA(cudaMemcpy(buffer, values.data(), bytes, cudaMemcpyHostToDevice));
  print_memory(gpu, fmt::format("{} bytes taken", bytes).c_str());
  const Operands operands(buffer);
  GraphCounters counters(operands.counters);
  products.set_counters(&counters);
  run_gelu(products, operands, gpu.stream());
  if (gelu_only) return;
  for (const auto& [hidden, all_rows] : std::vector<std::pair<int64_t, std::vector<int64_t>>>{
           {768, {768, 1024, 4096, 16384}}, {1024, {8192}}}) {
    for (const int64_t rows : all_rows) {
      double layer = 0;
      for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{hidden, 3 * hidden},
                                                                            {hidden, hidden},
                                                                            {hidden, 4 * hidden},
                                                                            {4 * hidden, hidden}}) {
        for (const ProductKind kind :
             {ProductKind::kForward, ProductKind::kInputGradient, ProductKind::kWeightGradient}) {
          const ProductShape shape{kind, DType::kBF16, rows, in, out, kind == ProductKind::kForward,
                                   false};
          const float time = time_product(products, shape, operands, gpu.stream());
          layer += time;
          const Clears clears = clears_of(products, shape, operands, counters, gpu.stream());
          fmt::print(
              "{{\"product\": {}, \"rows\": {}, \"in\": {}, \"out\": {}, \"ms\": {:.4f}, "
              "\"tflops\": {:.0f}, "
              "\"clears\": {}, \"hoisted\": {}}}\n",
              int(kind), rows, in, out, time, 2e-9 * double(rows * in * out) / time, clears.bytes,
              clears.hoisted);
        }
      }
      fmt::print("{{\"layer\": {}, \"rows\": {}, \"ms\": {:.4f}}}\n", hidden, rows, layer);
    }
    print_memory(gpu, "products of one width");
  }
  const ProductShape small{ProductKind::kForward, DType::kBF16, 32, 768, 2, true, false};
  fmt::print("{{\"classifier\": {:.4f}}}\n", time_product(products, small, operands, gpu.stream()));
  const ProductShape f32{ProductKind::kForward, DType::kF32, 1024, 768, 768, true, false};
  fmt::print("{{\"fp32\": {:.4f}}}\n", time_product(products, f32, operands, gpu.stream()));
  print_memory(gpu, "end");
}

}  // namespace
}  // namespace snug::cuda

int main(int argc, char** argv) {
  snug::sleep_at_barriers(argv);  // as the program does
  try {
    snug::cuda::run(argc > 1 && std::string_view(argv[1]) == "gelu");
  } catch (const snug::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return int(error.kind());
  }
}

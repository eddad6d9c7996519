// Captured clears and copies in place of products: each "product" clears its slice, copies what it
// finds there, and leaves something else behind, as kernels that count do.
#include "cuda/graph_counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/cuda_test_util.h"
#include "cuda/gpu.h"
#include "cuda/products.h"
#include "ops/cuda_workspace.h"
#include "plan/gpu.h"

namespace snug::cuda {
namespace {

constexpr size_t kSlice = 512;
constexpr int kReplays = 3;

size_t node_count(cudaGraph_t graph) {
  size_t count = 0;
  SNUG_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  return count;
}

size_t root_count(cudaGraph_t graph) {
  size_t count = 0;
  SNUG_CUDA(cudaGraphGetRootNodes(graph, nullptr, &count));
  return count;
}

template <class F>
cudaGraph_t captured(cudaStream_t stream, const F& work) {
  cudaGraph_t graph = nullptr;
  SNUG_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  SNUG_CUDA(cudaStreamEndCapture(stream, &graph));
  return graph;
}

// Runs the graph, gives `look` the chance to see what it left, and so on; then destroys it.
template <class F>
void replay(cudaGraph_t graph, cudaStream_t stream, const F& look) {
  cudaGraphExec_t instance = nullptr;
  SNUG_CUDA(cudaGraphInstantiate(&instance, graph, 0));
  for (int i = 0; i < kReplays; ++i) {
    SCOPED_TRACE(i);
    SNUG_CUDA(cudaGraphLaunch(instance, stream));
    SNUG_CUDA(cudaStreamSynchronize(stream));
    look();
  }
  SNUG_CUDA(cudaGraphExecDestroy(instance));
  SNUG_CUDA(cudaGraphDestroy(graph));
}

void count_in(std::span<std::byte> slice, std::byte* to, cudaStream_t stream) {
  SNUG_CUDA(cudaMemsetAsync(slice.data(), 0, slice.size() / 2, stream));
  SNUG_CUDA(cudaMemcpyAsync(to, slice.data(), slice.size() / 2, cudaMemcpyDeviceToDevice, stream));
  SNUG_CUDA(cudaMemsetAsync(slice.data(), 7, slice.size(), stream));
}

bool all_are(const std::vector<std::byte>& bytes, size_t begin, size_t end, int value) {
  return std::all_of(bytes.begin() + ptrdiff_t(begin), bytes.begin() + ptrdiff_t(end),
                     [&](std::byte b) { return b == std::byte(value); });
}

TEST(GraphCounters, SlicesDoNotOverlapAndRunOut) {
  std::vector<std::byte> memory(1000);
  GraphCounters counters(memory);
  for (int graph = 0; graph < 2; ++graph) {
    counters.begin();
    const auto first = counters.take(1), second = counters.take(257);
    EXPECT_EQ(first.data(), memory.data());
    EXPECT_GE(first.size(), 1u);
    EXPECT_GE(second.data(), first.data() + first.size());
    EXPECT_GE(second.size(), 257u);
    EXPECT_TRUE(counters.take(256).empty());
  }
}

TEST(GraphCounters, AllAreClearedAtTheBeginning) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  const DeviceBytes region(2 * kSlice), out(3 * kSlice), other(kSlice);
  GraphCounters counters({region.data<std::byte>(), region.size()});
  std::byte* const to = out.data<std::byte>();
  const cudaGraph_t graph = captured(gpu.stream(), [&] {
    // The first node is a clear: nothing before it.
    count_in(counters.take(kSlice), to, gpu.stream());
    count_in(counters.take(kSlice), to + kSlice, gpu.stream());
    EXPECT_TRUE(counters.take(1).empty());
    count_in({other.data<std::byte>(), kSlice}, to + 2 * kSlice, gpu.stream());
  });
  ASSERT_EQ(node_count(graph), 9u);
  EXPECT_EQ(counters.leading_clears(graph), 1);
  EXPECT_EQ(counters.hoist_clears(graph), 2);
  EXPECT_EQ(node_count(graph), 8u);  // two less, and one for both
  EXPECT_EQ(root_count(graph), 1u);
  EXPECT_EQ(fill_nodes(graph).size(), 5u);
  replay(graph, gpu.stream(), [&] {
    const std::vector<std::byte> found = out.download(), left = region.download();
    for (const size_t product : {0, 1, 2}) {
      EXPECT_TRUE(all_are(found, product * kSlice, product * kSlice + kSlice / 2, 0)) << product;
    }
    EXPECT_TRUE(all_are(left, 0, left.size(), 7));
  });
  EXPECT_TRUE(region.guards_intact() && out.guards_intact() && other.guards_intact());
}

TEST(GraphCounters, BranchesKeepTheirOrder) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  const DeviceBytes region(2 * kSlice), out(2 * kSlice), source(kSlice), copy(kSlice);
  GraphCounters counters({region.data<std::byte>(), region.size()});
  cudaStream_t side = nullptr;
  cudaEvent_t event = nullptr;
  SNUG_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  SNUG_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const cudaGraph_t graph = captured(gpu.stream(), [&] {
    SNUG_CUDA(cudaEventRecord(event, gpu.stream()));
    SNUG_CUDA(cudaStreamWaitEvent(side, event, 0));
    SNUG_CUDA(cudaMemsetAsync(source.data(), 3, kSlice, side));  // a second root
    count_in(counters.take(kSlice), out.data<std::byte>(), gpu.stream());
    SNUG_CUDA(cudaEventRecord(event, side));
    SNUG_CUDA(cudaStreamWaitEvent(gpu.stream(), event, 0));
    // Its clear waits for both streams.
    count_in(counters.take(kSlice), out.data<std::byte>() + kSlice, gpu.stream());
    SNUG_CUDA(cudaMemcpyAsync(copy.data(), source.data(), kSlice, cudaMemcpyDeviceToDevice,
                              gpu.stream()));
  });
  EXPECT_EQ(root_count(graph), 2u);
  EXPECT_EQ(counters.hoist_clears(graph), 2);
  EXPECT_EQ(node_count(graph), 7u);
  EXPECT_EQ(root_count(graph), 1u);
  replay(graph, gpu.stream(), [&] {
    const std::vector<std::byte> found = out.download();
    EXPECT_TRUE(all_are(found, 0, kSlice / 2, 0) && all_are(found, kSlice, kSlice + kSlice / 2, 0));
    EXPECT_TRUE(all_are(copy.download(), 0, kSlice, 3));
  });
  SNUG_CUDA(cudaEventDestroy(event));
  SNUG_CUDA(cudaStreamDestroy(side));
}

TEST(GraphCounters, GraphsWithoutClearsStayAsTheyAre) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  const DeviceBytes region(kSlice);
  GraphCounters counters({region.data<std::byte>(), region.size()});
  const std::span<std::byte> slice = counters.take(kSlice);
  const cudaGraph_t graph = captured(
      gpu.stream(), [&] { SNUG_CUDA(cudaMemsetAsync(slice.data(), 1, kSlice, gpu.stream())); });
  EXPECT_EQ(counters.hoist_clears(graph), 0);
  EXPECT_EQ(node_count(graph), 1u);
  SNUG_CUDA(cudaGraphDestroy(graph));
}

// Products whose algorithms count and those that do not: a graph of each shape twice gives the bits
// of single runs.
TEST(GraphCounters, ProductsKeepTheirBits) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  const DeviceBytes region(kCounterBytes), workspace(kProductWorkspaceBytes);
  GraphCounters counters({region.data<std::byte>(), region.size()});
  TestProducts products(gpu);
  products.set_counters(&counters);
  const std::span<std::byte> scratch(workspace.data<std::byte>(), workspace.size());
  int64_t hoisted = 0;
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{4096, 768, 768}, {2048, 768, 3072}, {512, 256, 64}}) {
    const ProductShape shape{.kind = ProductKind::kWeightGradient,
                             .dtype = DType::kF16,
                             .rows = rows,
                             .in = in,
                             .out = out,
                             .overwrite = true};
    SCOPED_TRACE(rows);
    const DeviceBytes dy(size_t(rows * out) * 2), x(size_t(rows * in) * 2),
        alone(size_t(in * out) * 4);
    const DeviceBytes first(alone.size()), second(alone.size());
    const auto run = [&](const DeviceBytes& to) {
      products.run(shape, {.left = dy.data(), .right = x.data(), .result = to.data()}, scratch,
                   gpu.stream());
    };
    products.set_timing({.free_factors = true});
    run(alone);
    counters.begin();
    const cudaGraph_t graph = captured(gpu.stream(), [&] {
      run(first);
      run(second);
    });
    hoisted += counters.hoist_clears(graph);
    replay(graph, gpu.stream(), [&] {
      EXPECT_EQ(first.download(), alone.download());
      EXPECT_EQ(second.download(), alone.download());
    });
  }
  EXPECT_TRUE(region.guards_intact());
  std::printf("clears taken out of six products: %lld\n", static_cast<long long>(hoisted));
}

}  // namespace
}  // namespace snug::cuda

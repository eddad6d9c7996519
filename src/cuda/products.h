// Matrix products of linear layers by cuBLASLt. The algorithm of a shape is chosen once: the
// library's candidates are timed on the device the first time a shape is met outside a capture, and
// remembered on disk by GPU, library version and shape. Whether GELU is done inside the product,
// and whether by the library or by a kernel of ours, is such a choice too.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cuda/product.h"
#include "cuda/product_choices.h"

namespace snug::cuda {

class Gpu;
class GraphCounters;
struct Contest;

// Launches what is left to do behind a product of the library's that did GELU or its gradient too,
// and behind one that did not.
struct BehindProduct {
  std::function<void()> without_gelu;
  std::function<void()> with_gelu = [] {};
};

// Whether the library may know the product with GELU: half types, and the tanh form by its argument
// only.
bool may_fuse_gelu(const ProductShape& shape);

class Products {
 public:
  // Choices are kept in a file in `cache_folder`, a line for each, written as they are made; empty:
  // not kept.
  Products(const Gpu& gpu, const std::filesystem::path& cache_folder, bool allow_tf32);
  ~Products();
  Products(const Products&) = delete;

  void run(const ProductShape& shape, const ProductTensors& tensors, std::span<std::byte> workspace,
           cudaStream_t stream);
  // A product and what its shape says is done behind it, in one where that was measured to be
  // faster, and what is left to do, which is nothing behind a kernel of ours. Without GELU a
  // forward product writes the argument, where that is kept, and else the result.
  // column_sums is for our kernels: `behind` adds them otherwise.
  void run_with_gelu(const ProductShape& shape, const ProductTensors& tensors,
                     std::span<std::byte> workspace, cudaStream_t stream,
                     const BehindProduct& behind);
  // How choices are made from here on. free_factors: the memory of factors holds nothing yet, and
  // gets numbers like real ones, to be timed on. long_runs: what is chosen will keep the GPU busy
  // for long, so that its power limit counts.
  struct Timing {
    bool free_factors = false, long_runs = false;
  };
  void set_timing(Timing timing) { timing_ = timing; }
  // What captured products count in, where their algorithm's workspace is for nothing else; null:
  // in their workspace.
  void set_counters(GraphCounters* counters) { counters_ = counters; }

 private:
  class Descriptors;

  // Chosen now if it was not before; null: the library has none.
  const ProductAlgorithm* algorithm(const ProductShape& shape, const Descriptors& descriptors,
                                    const ProductTensors& tensors, std::span<std::byte> workspace,
                                    cudaStream_t stream);
  // The fastest of two steps and the other ways that there are; do_it(way) does all that way takes.
  ProductWay fastest_way(const ProductShape& shape, const ProductTensors& tensors,
                         std::span<std::byte> workspace, cudaStream_t stream,
                         const std::function<void(ProductWay)>& do_it);
  // The fastest of the library's candidates, if it has any.
  std::optional<ProductAlgorithm> measure(const ProductShape& shape, const Descriptors& descriptors,
                                          const ProductTensors& tensors,
                                          std::span<std::byte> workspace,
                                          cudaStream_t stream) const;
  // The workspace of a product: a slice of the counters, where it is captured, needs no more, and
  // there is one left.
  std::span<std::byte> room(size_t counter_bytes, std::span<std::byte> workspace,
                            cudaStream_t stream) const;
  Contest contest(const ProductShape& shape, cudaStream_t stream) const;
  // Adds the candidates with the blocks of their results in other orders.
  void add_orders(const Descriptors& descriptors,
                  std::vector<cublasLtMatmulHeuristicResult_t>& candidates) const;
  void give_numbers(const ProductShape& shape, const ProductTensors& tensors,
                    cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  bool tf32_;
  ProductChoices choices_;
  Timing timing_;
  GraphCounters* counters_ = nullptr;
};

}  // namespace snug::cuda

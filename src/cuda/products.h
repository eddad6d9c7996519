// Matrix products of linear layers by cuBLASLt, named by their place in the layer as in
// ops/products.h. The algorithm of a shape is chosen once: the library's candidates are timed on
// the device the first time a shape is met outside a capture, and remembered on disk by GPU,
// library version and shape, so that two runs use the same one and get the same bits, also where
// they start together: a shape is timed by one process at a time, and the first choice that is
// written counts for all. Whether GELU is done inside the product, and whether by the library or by
// a kernel of ours, is such a choice too.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <compare>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/shared_lines.h"
#include "ops/linear.h"

namespace snug::cuda {

class Gpu;
class GraphCounters;
class PendingSums;

// Weights are written as [out, in] here; where they are stored [in, out], their gradient is too.
enum class ProductKind : uint8_t {
  kForward,         // y[rows, out] = x[rows, in] · w[out, in]ᵀ (+ b)
  kInputGradient,   // dx[rows, in] (+)= dy[rows, out] · w[out, in]
  kWeightGradient,  // dw[out, in] (+)= dy[rows, out]ᵀ · x[rows, in], in fp32 or rounded
};

// What is done behind a product: GELU behind a forward one, of which the argument is kept or the
// slope there or neither, or GELU's gradient by what was kept behind one for the input's gradient.
enum class ProductGelu : uint8_t { kNone, kForgets, kKeeps, kGradient, kKeepsSlope };

struct ProductShape {
  ProductKind kind = ProductKind::kForward;
  DType dtype = DType::kF32;  // of the factors; kI8: kForward only, without bias, to int32, see
                              // multiplies_bytes()
  int64_t rows = 0, in = 0, out = 0;
  bool bias = false;        // kForward only
  bool accumulate = false;  // kForward and kInputGradient: += instead of =
  WeightLayout layout = WeightLayout::kOutIn;
  int64_t out_stride = 0;                 // elements from one row of y or dy to the next; 0: out
  ProductGelu gelu = ProductGelu::kNone;  // see may_fuse_gelu() and has_gelu_product()
  bool overwrite = false;                 // kWeightGradient only: = instead of +=
  Activation gelu_form = Activation::kGeluTanh;  // or kGelu, or for kGradient kKeptSlope
  bool rounds = false;  // kWeightGradient only, with overwrite: to the type of the factors

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductTensors {
  const void* left = nullptr;   // x or dy
  const void* right = nullptr;  // w, or x for kWeightGradient
  const void* bias = nullptr;
  void* result = nullptr;
  void* argument = nullptr;  // of GELU, or the slope there, of the shape of the result; see
                             // has_slope_bytes()
  float scale = 1.0f;        // of the product
  // += the sums over rows of a result with GELU's gradient; null: not wanted.
  float* column_sums = nullptr;
  PendingSums* pending = nullptr;  // where they may wait; null: nowhere
};

// Launches what is left to do behind a product of the library's that did GELU or its gradient too,
// and behind one that did not.
struct BehindProduct {
  std::function<void()> without_gelu;
  std::function<void()> with_gelu = [] {};
};

// Whether `argument` has slopes as SlopeBytes.
constexpr bool has_slope_bytes(const ProductShape& shape) {
  return slope_type(shape.dtype) == DType::kSlope8 &&
         (shape.gelu == ProductGelu::kKeepsSlope || shape.gelu_form == Activation::kKeptSlope);
}

// Whether the library may know the product with GELU: half types, and the tanh form by its argument
// only.
bool may_fuse_gelu(const ProductShape& shape);

class Products {
 public:
  // Choices are kept in a file in `cache_folder`, a line for each, written as they are made; empty:
  // not kept.
  Products(const Gpu& gpu, std::filesystem::path cache_folder, bool allow_tf32);
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
  // What the algorithm chosen for a shape asks for; 0: nothing, or it is not known, since the
  // choice was read from disk.
  size_t workspace_bytes(const ProductShape& shape) const;

 private:
  // How a product and GELU are done: by two steps, by the library's one, by ours.
  enum class Way : uint8_t { kApart, kLibrary, kOwn };
  struct Choice {
    cublasLtMatmulAlgo_t algorithm = {};
    Way way = Way::kLibrary;
    size_t workspace_bytes = 0;  // asked for; not kept on disk
    // Of a workspace that is cleared before its kernel, and small; 0: as given.
    size_t counter_bytes = 0;
  };
  class Descriptors;

  const Choice& choice(const ProductShape& shape, const Descriptors& descriptors,
                       const ProductTensors& tensors, std::span<std::byte> workspace,
                       cudaStream_t stream);
  // The fastest of two steps and the other ways that there are; do_it(way) does all that way takes.
  struct Ways {
    bool library = false, own = false;
  };
  Way fastest_way(const ProductShape& shape, Ways there, const ProductTensors& tensors,
                  std::span<std::byte> workspace, cudaStream_t stream,
                  const std::function<void(Way)>& do_it);
  // The fastest of the library's candidates, if it has any.
  std::optional<Choice> measure(const ProductShape& shape, const Descriptors& descriptors,
                                const ProductTensors& tensors, std::span<std::byte> workspace,
                                cudaStream_t stream) const;
  // The workspace of a product: a slice of the counters, where it is captured, needs no more, and
  // there is one left.
  std::span<std::byte> room(size_t counter_bytes, std::span<std::byte> workspace,
                            cudaStream_t stream) const;
  // Which of some ways to do a product is fastest. do_it(i) does it, and says whether that was
  // possible; give_numbers() came before.
  struct Fastest {
    size_t way = 0;
    float milliseconds = 0;  // 0: none is possible
  };
  Fastest fastest_of(size_t ways, const ProductShape& shape, cudaStream_t stream,
                     const std::function<bool(size_t)>& do_it) const;
  // Whether it is timed at the GPU's power limit.
  bool is_heavy(const ProductShape& shape) const;
  // Adds the candidates with the blocks of their results in other orders.
  void add_orders(const Descriptors& descriptors,
                  std::vector<cublasLtMatmulHeuristicResult_t>& candidates) const;
  void give_numbers(const ProductShape& shape, const ProductTensors& tensors,
                    cudaStream_t stream) const;
  bool tf32_for(const ProductShape& shape) const { return tf32_ && shape.dtype == DType::kF32; }
  // Null: there is none.
  const Choice* known(const ProductShape& shape) const;
  // Takes in what is on disk and was not there the last time.
  void take_in();
  // The turn to time a shape, waited for until another process has chosen for it. Not held: that
  // has happened, or there is no waiting any longer.
  SharedLines::Turn turn_for(const ProductShape& shape);
  // Makes what was measured the choice for a shape that is not known, here and on disk; or what
  // another process has written before, which may happen without a turn.
  const Choice& remember(const ProductShape& shape, const Choice& measured);

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  std::optional<SharedLines> lines_;  // none: choices are not kept
  std::map<ProductShape, Choice> choices_;
  bool tf32_;
  Timing timing_;
  GraphCounters* counters_ = nullptr;
};

}  // namespace snug::cuda

// Matrix products of linear layers by cuBLASLt, named by their place in the layer as in ops/products.h. The algorithm of
// a shape is chosen once: the library's candidates are timed on the device the first time a shape is met outside a
// capture, and remembered on disk by GPU, library version and shape, so that two runs use the same one and get the same
// bits.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <compare>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "core/dtype.h"

namespace snug::cuda {

class Gpu;

enum class ProductKind : uint8_t {
  kForward,         // y[rows, out] = x[rows, in] · w[out, in]ᵀ (+ b)
  kInputGradient,   // dx[rows, in] (+)= dy[rows, out] · w[out, in]
  kWeightGradient,  // dw[out, in] += dy[rows, out]ᵀ · x[rows, in], in fp32
};

struct ProductShape {
  ProductKind kind = ProductKind::kForward;
  DType dtype = DType::kF32;  // of the factors
  int64_t rows = 0, in = 0, out = 0;
  bool bias = false;        // kForward only
  bool accumulate = false;  // kInputGradient only

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductTensors {
  const void* left = nullptr;   // x or dy
  const void* right = nullptr;  // w, or x for kWeightGradient
  const void* bias = nullptr;
  void* result = nullptr;
};

class Products {
 public:
  // Choices are read from and written to `cache_folder`; empty: not kept.
  Products(const Gpu& gpu, std::filesystem::path cache_folder, bool allow_tf32);
  ~Products();
  Products(const Products&) = delete;

  void run(const ProductShape& shape, const ProductTensors& tensors, std::span<std::byte> workspace, cudaStream_t stream);
  // Writes new choices to disk.
  void save() const;

 private:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm;
    float milliseconds = 0;  // 0: from the cache
  };
  class Descriptors;

  const Choice& choice(const ProductShape& shape, const Descriptors& descriptors, const ProductTensors& tensors,
                       std::span<std::byte> workspace, cudaStream_t stream);
  Choice measure(const ProductShape& shape, const Descriptors& descriptors, const ProductTensors& tensors,
                 std::span<std::byte> workspace, cudaStream_t stream) const;
  void load();

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  std::filesystem::path cache_file_;
  std::map<ProductShape, Choice> choices_;
  bool tf32_;
  bool changed_ = false;
};

}  // namespace snug::cuda

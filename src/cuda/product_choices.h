// What was measured to be fastest for products, by shape: in memory, and on disk for other runs, so
// that they use the same and get the same bits, also where they start together: a shape is timed by
// one process at a time, and the first choice that is written counts for all.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/shared_lines.h"
#include "cuda/product.h"

namespace snug::cuda {

// How the library does a product.
struct ProductAlgorithm {
  cublasLtMatmulAlgo_t algorithm = {};
  // Of a workspace that is cleared before its kernel, and small; 0: as given.
  size_t counter_bytes = 0;
};

// How a product and GELU are done: by two steps, by the library's one, by a kernel of ours.
enum class ProductWay : uint8_t { kApart, kLibrary, kOwn };

// A product with GELU, and whether a kernel of ours was there to choose.
struct FusedProduct {
  ProductShape shape;
  bool own = false;

  auto operator<=>(const FusedProduct&) const = default;
};

class ProductChoices {
 public:
  // Lines of a file in a folder that may not be there yet; none: on disk nothing is kept.
  explicit ProductChoices(const std::optional<std::filesystem::path>& file);

  // Null: not chosen yet, as far as is known here.
  const ProductAlgorithm* algorithm(const ProductShape& shape) const;
  const ProductWay* way(const FusedProduct& product) const;

  // The turn to time what is not known, waited for until it is, by another process. Not held: that
  // has happened, or there is no waiting any longer.
  SharedLines::Turn turn(const std::function<bool()>& is_known);
  // Makes what was measured the choice; or gives what another process has written before, which may
  // happen without a turn.
  const ProductAlgorithm& keep(const ProductShape& shape, const ProductAlgorithm& measured);
  ProductWay keep(const FusedProduct& product, ProductWay measured);

 private:
  // Takes in what is on disk and was not there the last time.
  void take_in();
  void add(const std::string& line);

  std::optional<SharedLines> lines_;
  std::map<ProductShape, ProductAlgorithm> algorithms_;
  std::map<FusedProduct, ProductWay> ways_;
};

}  // namespace snug::cuda

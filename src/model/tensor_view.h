// A tensor as a view of values stored in another order: PyTorch's transposed and sliced tensors,
// TensorFlow's kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"

namespace snug {

struct TensorView {
  uint64_t offset = 0;  // bytes from the start of the file to the first element
  size_t width = 4;     // bytes of an element
  // Of equal length; strides count elements and are not negative.
  std::vector<int64_t> shape, strides;

  uint64_t elements() const;
  bool is_contiguous() const;
};

// `shape` and `strides` as a file states them, for a store of `stored` elements of which the view
// begins at `first`. Empty where the view lies inside of the store and shows no more elements than
// that has; otherwise what is wrong with it.
std::string view_mismatch(std::span<const int64_t> shape, std::span<const int64_t> strides,
                          uint64_t first, uint64_t stored);

// Elements [first_element, ...) of the view, row by row: out.size() bytes of them. Takes
// kTensorBufferBytes of stack.
void read_view(const InputFile& file, const TensorView& view, uint64_t first_element,
               std::span<std::byte> out);

}  // namespace snug

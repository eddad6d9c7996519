// Tensors in files, whatever their format: a list that is known once a file is open, and values
// that are read in pieces. Reading weights needs no buffer of the tensor's size: 16-bit values are
// read into the upper half of the caller's floats and widened in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace snug {

// All the memory that reading or writing tensors takes beside the caller's (on the stack, for
// conversions).
inline constexpr size_t kTensorBufferBytes = 16 << 10;
inline constexpr size_t kMaxRank = 64;

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape{};  // empty: one element
  uint64_t
      begin = 0,
      end = 0;  // bytes from the start of the file, where the values lie there one after the other

  uint64_t bytes() const { return end - begin; }
  uint64_t elements() const { return bytes() / dtype_bytes(dtype); }
};

std::string format_shape(std::span<const int64_t> shape);  // "[30522, 768]"
// Text from a file, fit for a message: of bounded length and without control characters.
std::string in_quotes(std::string_view text);

struct TensorList {
  std::vector<TensorEntry> tensors;  // by position in the file
  std::vector<uint32_t> by_name;     // indices into tensors, sorted by name

  // Fills by_name. Duplicate names are an error (kInput); `origin` is the file name for messages.
  void sort_names(std::string_view origin);
  const TensorEntry* find(std::string_view name) const;
};

enum class NonFinite { kRefuse, kAllow };

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::filesystem::path& path() const = 0;

  std::span<const TensorEntry> tensors() const { return list_.tensors; }
  const TensorEntry* find(std::string_view name) const { return list_.find(name); }

  // Elements [first_element, first_element + out.size()), row by row, as fp32 from any
  // floating-point type. Values that are, or by narrowing from fp64 become, NaN or infinite are an
  // error with their count, unless allowed.
  void read_as_f32(const TensorEntry& tensor, uint64_t first_element, std::span<float> out,
                   NonFinite policy = NonFinite::kRefuse) const;
  // The stored bytes [first_byte, first_byte + out.size()) of a tensor's elements, row by row;
  // whole elements.
  void read_bytes(const TensorEntry& tensor, uint64_t first_byte, std::span<std::byte> out) const;

 protected:
  TensorFile() = default;
  TensorFile(TensorFile&&) = default;
  // A range of whole elements inside of the tensor, which is one of list_.
  virtual void read_elements(const TensorEntry& tensor, uint64_t first_byte,
                             std::span<std::byte> out) const = 0;

  TensorList list_;
};

}  // namespace snug

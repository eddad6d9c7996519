// Tensors in safetensors files: read strictly, written atomically. A file is a u64 header length, a
// JSON header that must account for every byte of the data exactly once, and the data. Reading
// weights needs no buffer of the tensor's size: 16-bit values are read into the upper half of the
// caller's floats and widened in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/file.h"

namespace snug {

// All the memory that reading or writing tensors takes beside the caller's (on the stack, for
// conversions).
inline constexpr size_t kSafetensorsBufferBytes = 16 << 10;
// The reference implementation's limit, in bytes.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape{};  // empty: one element
  uint64_t begin = 0, end = 0;   // bytes from the start of the file

  uint64_t bytes() const { return end - begin; }
  uint64_t elements() const { return bytes() / dtype_bytes(dtype); }
};

std::string_view safetensors_dtype(DType dtype);           // "F32", "BF16", ...
std::string format_shape(std::span<const int64_t> shape);  // "[30522, 768]"

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // by position in the file
  std::vector<uint32_t> by_name;     // indices into tensors, sorted by name
  std::map<std::string, std::string> metadata;

  const TensorEntry* find(std::string_view name) const;
};

// Checks everything a header can get wrong (kInput): JSON, types, duplicate names, sizes, holes and
// overlaps. `header` excludes the length before it; `data_bytes` is what follows it; `origin` is
// the file name for messages.
SafetensorsHeader parse_safetensors_header(std::string_view header, uint64_t data_bytes,
                                           std::string_view origin);

enum class NonFinite { kRefuse, kAllow };

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const TensorEntry> tensors() const { return header_.tensors; }
  const TensorEntry* find(std::string_view name) const { return header_.find(name); }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  // Elements [first_element, first_element + out.size()) as fp32, from any floating-point type.
  // Values that are, or by narrowing from fp64 become, NaN or infinite are an error with their
  // count, unless allowed.
  void read_as_f32(const TensorEntry& tensor, uint64_t first_element, std::span<float> out,
                   NonFinite policy = NonFinite::kRefuse) const;
  // The stored bytes [first_byte, first_byte + out.size()) of a tensor.
  void read_bytes(const TensorEntry& tensor, uint64_t first_byte, std::span<std::byte> out) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

// Streams tensors into a new file in the order they were declared. The file appears at commit(),
// complete and synced; a file of that name, even one being read, stays as it was until then.
class SafetensorsWriter {
 public:
  // Of each tensor, name, dtype and shape are used. Declaring wider types first keeps all data
  // aligned.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorEntry> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // The next values of tensor `name`, converted to its declared type (F32, F16 or BF16). May come
  // in pieces.
  void write(std::string_view name, std::span<const float> values);
  // The next bytes of tensor `name`, as they are.
  void write_bytes(std::string_view name, std::span<const std::byte> bytes);
  void commit();

  uint64_t file_bytes() const { return file_bytes_; }

 private:
  void skip_finished();

  OutputFile file_;
  std::vector<TensorEntry> tensors_;
  size_t current_ = 0;
  uint64_t position_ = 0, file_bytes_ = 0;
};

}  // namespace snug

// Tensors in safetensors files: read strictly, written atomically. A file is a u64 header length, a
// JSON header that must account for every byte of the data exactly once, and the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "model/tensor_file.h"

namespace snug {

// The reference implementation's limit, in bytes.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

std::string_view safetensors_dtype(DType dtype);  // "F32", "BF16", ...

struct SafetensorsHeader : TensorList {
  std::map<std::string, std::string> metadata;
};

// Checks everything a header can get wrong (kInput): JSON, types, duplicate names, sizes, holes and
// overlaps. `header` excludes the length before it; `data_bytes` is what follows it; `origin` is
// the file name for messages.
SafetensorsHeader parse_safetensors_header(std::string_view header, uint64_t data_bytes,
                                           std::string_view origin);

class SafetensorsFile final : public TensorFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const override { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void read_elements(const TensorEntry& tensor, uint64_t first_byte,
                     std::span<std::byte> out) const override;

  InputFile file_;
  std::map<std::string, std::string> metadata_;
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

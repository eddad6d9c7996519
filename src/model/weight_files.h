// The weights of a model folder, whatever files hold them: model.safetensors, pytorch_model.bin,
// both also in the shards that an index lists, or a TensorFlow checkpoint of BERT; of a folder of
// adapters, those of the model they belong to with the adapters added. Shards are named by bare
// file names only: an index cannot point outside of its folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/adapter.h"
#include "model/tensor_file.h"

namespace snug {

class WeightFolder {
 public:
  // Opens the files and reads their headers, no data. Errors are kInput.
  explicit WeightFolder(const std::filesystem::path& folder);
  // Adapters beside another model than the one their configuration names.
  WeightFolder(const std::filesystem::path& model, const std::filesystem::path& adapter);

  const std::filesystem::path& folder() const { return folder_; }
  const TensorEntry* find(std::string_view name) const;
  std::vector<std::string_view> names() const;  // sorted
  uint64_t tensor_bytes() const;                // as stored, all tensors together

  // As TensorFile::read_as_f32. A name that is not here is an error.
  void read_as_f32(std::string_view name, uint64_t first_element, std::span<float> out,
                   NonFinite policy = NonFinite::kRefuse) const;
  // As TensorFile::read_bytes.
  void read_bytes(std::string_view name, uint64_t first_byte, std::span<std::byte> out) const;

 private:
  struct Place {
    size_t file;  // kInAdapter: in the adapter's file
    const TensorEntry* tensor;
  };
  static constexpr size_t kInAdapter = size_t(-1);
  const Place& place(std::string_view name) const;
  void open(const std::filesystem::path& folder);
  void add_replacements();
  void open_single(std::unique_ptr<TensorFile> file);
  void open_shards(const std::filesystem::path& index, std::string_view extension);

  std::filesystem::path folder_;
  std::unique_ptr<AdapterFolder> adapter_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string_view, Place> places_;  // keys live in files_' entries
};

}  // namespace snug

// Tensors of a TensorFlow checkpoint of Google's BERT (bert_model.ckpt.index and .data-*), under
// the names and in the layout that Hugging Face gives them. Every block of the index and every
// tensor that is read is checked by its checksum.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "model/tensor_file.h"
#include "model/tensor_view.h"

namespace snug {

struct TfName {
  std::string name;
  bool transposed = false;  // a kernel: TensorFlow keeps it as [in, out]

  bool operator==(const TfName&) const = default;
};
// As transformers names it; nothing for what an optimizer keeps.
std::optional<TfName> model_name(std::string_view key);

class TfCheckpoint final : public TensorFile {
 public:
  // `prefix`: the path without ".index". Reads the index, no values. Errors are kInput.
  explicit TfCheckpoint(const std::filesystem::path& prefix);

  const std::filesystem::path& path() const override { return index_; }

 private:
  struct Variable {
    std::string key;  // in the checkpoint
    const InputFile* shard = nullptr;
    TensorView view;
    uint64_t offset = 0, bytes = 0;
    uint32_t crc32c = 0;
  };
  void read_header(std::string_view message);
  void add_variable(const std::string& key, std::string_view message);
  const InputFile& shard(uint64_t number, const std::string& key);
  void verify(const Variable& variable) const;
  void read_elements(const TensorEntry& tensor, uint64_t first_byte,
                     std::span<std::byte> out) const override;

  std::filesystem::path prefix_, index_;
  uint64_t num_shards_ = 0;
  std::map<uint64_t, InputFile> shards_;
  std::vector<Variable> variables_;     // by tensor
  mutable std::vector<bool> verified_;  // by tensor
};

}  // namespace snug

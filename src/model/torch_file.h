// Tensors as torch.save writes a state dict (pytorch_model.bin): a zip archive of a pickle and the
// values, or the legacy format, pickles with the values behind them. The pickle is read as data
// (model/unpickler.h); nothing is executed. Transposed, sliced, shared and tied tensors give the
// values that PyTorch gives.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "core/file.h"
#include "model/tensor_file.h"
#include "model/tensor_view.h"
#include "model/unpickler.h"
#include "model/zip_archive.h"

namespace snug {

class TorchFile final : public TensorFile {
 public:
  // Reads what describes the tensors, no values. Errors are kInput.
  explicit TorchFile(const std::filesystem::path& path);
  TorchFile(TorchFile&&) = delete;  // the archive refers to file_

  const std::filesystem::path& path() const override { return file_.path(); }

 private:
  // Values under one key.
  struct Place {
    uint64_t offset = 0, bytes = 0;
    // Whose checksum is checked before the first value is used; null in legacy files.
    const ZipRecord* record = nullptr;
  };
  using FindPlace = std::function<Place(const PickleStorage&)>;

  void open_zip();
  void open_legacy();
  std::map<std::string, Place> legacy_places(const Unpickler& list,
                                             std::span<const PickleStorage> storages) const;
  void add_tensors(const Unpickler& unpickler, const PickleValue& root, const FindPlace& find);
  void read_elements(const TensorEntry& tensor, uint64_t first_byte,
                     std::span<std::byte> out) const override;

  InputFile file_;
  std::optional<ZipArchive> archive_;
  std::vector<TensorView> views_;          // by tensor
  std::vector<const ZipRecord*> records_;  // by tensor
  mutable std::vector<bool> verified_;     // by record of the archive
};

}  // namespace snug

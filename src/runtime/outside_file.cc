#include "runtime/outside_file.h"

namespace snug {

OutsideFile::OutsideFile(const std::filesystem::path& folder, size_t bytes) {
  if (bytes == 0) return;
  file_.emplace(folder, "what is offloaded");
  file_->reserve(bytes,
                 "--cache-dir names another folder, --offload none keeps everything in memory");
}

void OutsideFile::read(size_t offset, std::span<std::byte> to) const {
  if (file_) file_->read(offset, to);
}

void OutsideFile::write(size_t offset, std::span<const std::byte> from) {
  if (file_) file_->write(offset, from);
}

}  // namespace snug

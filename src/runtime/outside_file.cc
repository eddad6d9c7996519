#include "runtime/outside_file.h"

#include <fcntl.h>

#include <cstring>

#include "core/error.h"
#include "core/progress.h"

namespace snug {

OutsideFile::OutsideFile(const std::filesystem::path& folder, size_t bytes) {
  if (bytes == 0) return;
  file_.emplace(folder, "what is offloaded");
  if (const int status = ::posix_fallocate(file_->descriptor(), 0, off_t(bytes)); status != 0) {
    throw Error(ErrorKind::kStorage,
                fmt::format("{}: no room for the {} that the plan keeps there: {}", folder.string(), format_bytes(bytes), std::strerror(status)),
                "--cache-dir names another folder, --offload none keeps everything in memory");
  }
}

void OutsideFile::read(size_t offset, std::span<std::byte> to) const {
  if (file_) file_->read(offset, to);
}

void OutsideFile::write(size_t offset, std::span<const std::byte> from) {
  if (file_) file_->write(offset, from);
}

}  // namespace snug

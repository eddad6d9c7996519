#include "runtime/outside_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"

namespace snug {

OutsideFile::OutsideFile(const std::filesystem::path& folder, size_t bytes) {
  if (bytes == 0) return;
  make_directories(folder);
  std::string name = (folder / "outside-XXXXXX").string();
  file_ = ::mkstemp(name.data());
  if (file_ < 0) fail(ErrorKind::kStorage, "{}: {}", folder.string(), std::strerror(errno));
  ::unlink(name.c_str());  // it goes with the process, however that ends
  if (const int status = ::posix_fallocate(file_, 0, off_t(bytes)); status != 0) {
    ::close(file_);
    throw Error(ErrorKind::kStorage,
                fmt::format("{}: no room for {} of optimizer state: {}", folder.string(), format_bytes(bytes), std::strerror(status)),
                "--cache-dir names another folder, --offload none keeps the state in memory");
  }
}

OutsideFile::~OutsideFile() {
  if (file_ >= 0) ::close(file_);
}

void OutsideFile::read(size_t offset, std::span<std::byte> to) const {
  for (size_t done = 0; done < to.size();) {
    const ssize_t count = ::pread(file_, to.data() + done, to.size() - done, off_t(offset + done));
    if (count <= 0) fail(ErrorKind::kStorage, "optimizer state outside of memory: {}", std::strerror(errno));
    done += size_t(count);
  }
}

void OutsideFile::write(size_t offset, std::span<const std::byte> from) {
  for (size_t done = 0; done < from.size();) {
    const ssize_t count = ::pwrite(file_, from.data() + done, from.size() - done, off_t(offset + done));
    if (count <= 0) fail(ErrorKind::kStorage, "optimizer state outside of memory: {}", std::strerror(errno));
    done += size_t(count);
  }
}

}  // namespace snug

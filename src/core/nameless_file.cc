#include "core/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"

namespace snug {

NamelessFile::NamelessFile(const std::filesystem::path& folder, std::string purpose)
    : folder_(folder.string()), purpose_(std::move(purpose)) {
  make_directories(folder);
  std::string name = (folder / "nameless-XXXXXX").string();
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) {
    fail(ErrorKind::kStorage, "{}: cannot create a file for {}: {}", folder_, purpose_,
         std::strerror(errno));
  }
  ::unlink(name.c_str());
}

NamelessFile::~NamelessFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

NamelessFile::NamelessFile(NamelessFile&& other) noexcept
    : folder_(std::move(other.folder_)),
      purpose_(std::move(other.purpose_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

NamelessFile& NamelessFile::operator=(NamelessFile&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(purpose_, other.purpose_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void NamelessFile::reserve(uint64_t bytes, const char* advice) {
  const int status = bytes > 0 ? ::posix_fallocate(descriptor_, 0, off_t(bytes)) : 0;
  if (status == 0) return;
  throw Error(ErrorKind::kStorage,
              fmt::format("{}: no room for {} of {}: {}", folder_, format_bytes(bytes), purpose_,
                          std::strerror(status)),
              advice);
}

void NamelessFile::read(uint64_t offset, std::span<std::byte> to) const {
  for (size_t done = 0; done < to.size();) {
    const ssize_t count =
        ::pread(descriptor_, to.data() + done, to.size() - done, off_t(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail(ErrorKind::kStorage, "{}: cannot read {}: {}", folder_, purpose_, std::strerror(errno));
    }
    SNUG_CHECK(count > 0);  // nobody reads what has not been written
    done += size_t(count);
  }
}

void NamelessFile::write(uint64_t offset, std::span<const std::byte> from) {
  for (size_t done = 0; done < from.size();) {
    const ssize_t count =
        ::pwrite(descriptor_, from.data() + done, from.size() - done, off_t(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail(ErrorKind::kStorage, "{}: cannot write {}: {}", folder_, purpose_, std::strerror(errno));
    }
    done += size_t(count);
  }
}

}  // namespace snug

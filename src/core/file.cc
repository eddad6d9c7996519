#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/kill_point.h"

namespace snug {
namespace {

// Written pages are sent to the disk this often, and dropped from the page cache when they have
// come there, so that a large checkpoint does not press a memory-limited container into reclaim.
constexpr uint64_t kSendEvery = 16 << 20;
constexpr std::chrono::milliseconds kLockPoll(5);

std::string errno_text() { return std::strerror(errno); }

std::string_view special_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail(ErrorKind::kInput, "{}: cannot open: {}", path.string(), errno_text());
  struct stat info;
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    fail(ErrorKind::kInput, "{}: is {}, expected a regular file", path.string(),
         special_kind(info.st_mode));
  }
  size_ = uint64_t(info.st_size);
  mtime_ns_ = int64_t(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(other.fd_),
      size_(other.size_),
      mtime_ns_(other.mtime_ns_) {
  other.fd_ = -1;
}

size_t InputFile::read_some(uint64_t offset, void* destination, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(fd_, static_cast<char*>(destination) + done, bytes - done, off_t(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      fail(ErrorKind::kInput, "{}: cannot read at byte {}: {}", path_.string(), offset + done,
           errno_text());
    }
    if (n == 0) break;
    done += size_t(n);
  }
  return done;
}

void InputFile::read_exactly(uint64_t offset, void* destination, size_t bytes) const {
  const size_t got = read_some(offset, destination, bytes);
  if (got != bytes) {
    fail(ErrorKind::kInput,
         "{}: ends at byte {}, expected {} bytes at {}; was it truncated while in use?",
         path_.string(), offset + got, bytes, offset);
  }
}

void InputFile::drop_cache(uint64_t offset, uint64_t bytes) const {
  ::posix_fadvise(fd_, off_t(offset), off_t(bytes), POSIX_FADV_DONTNEED);
}

std::string read_small_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const InputFile file(path);
  if (file.size() > max_bytes) {
    fail(ErrorKind::kInput, "{}: {} bytes, expected at most {}", path.string(), file.size(),
         max_bytes);
  }
  std::string text(file.size(), '\0');
  file.read_exactly(0, text.data(), text.size());
  return text;
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(path_.string() + ".tmp-" + std::to_string(::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorKind::kStorage, "{}: cannot create: {}", path_.string(), errno_text());
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  const char* source = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, source, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      fail(ErrorKind::kStorage, "{}: cannot write at byte {}: {}", path_.string(), offset,
           errno_text());
    }
    source += n;
    offset += uint64_t(n);
    bytes -= size_t(n);
  }
}

void OutputFile::write(const void* data, size_t bytes) {
  kill_point("file:before_write");
  write_at(position_, data, bytes);
  kill_point("file:after_write");
  position_ += bytes;
  if (position_ - sent_ >= kSendEvery) send();
}

// What was written since the last time goes to the disk while the caller writes on; what was sent
// then has come there, or is waited for.
void OutputFile::send() {
  sync_range(settled_, sent_,
             SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  ::posix_fadvise(fd_, off_t(settled_), off_t(sent_ - settled_), POSIX_FADV_DONTNEED);
  settled_ = sent_;
  sync_range(sent_, position_, SYNC_FILE_RANGE_WRITE);
  sent_ = position_;
}

// After a failed sync the kernel may call the lost pages clean, so it is never retried: the file is
// given up.
void OutputFile::sync_range(uint64_t begin, uint64_t end, unsigned flags) {
  if (begin == end) return;  // an empty range would mean all of the file
  if (::sync_file_range(fd_, off_t(begin), off_t(end - begin), flags) == 0) return;
  if (errno == ENOSYS && ::fdatasync(fd_) == 0) return;
  fail(ErrorKind::kStorage, "{}: cannot sync: {}", path_.string(), errno_text());
}

void OutputFile::commit() {
  kill_point("file:before_sync");
  if (::fsync(fd_) != 0) {
    fail(ErrorKind::kStorage, "{}: cannot sync: {}", path_.string(), errno_text());
  }
  kill_point("file:after_sync");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const std::string reason = errno_text();
    ::unlink(temporary_.c_str());
    fail(ErrorKind::kStorage, "{}: cannot finish writing: {}", path_.string(), reason);
  }
  kill_point("file:after_rename");
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

void write_file_atomically(const std::filesystem::path& path, std::string_view contents) {
  OutputFile file(path);
  file.write(contents);
  file.commit();
}

void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    fail(ErrorKind::kStorage, "{}: cannot create folder: {}", path.string(), error.message());
  }
}

void sync_directory(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(ErrorKind::kStorage, "{}: cannot open folder: {}", path.string(), errno_text());
  const int result = ::fsync(fd);
  ::close(fd);
  // Some file systems cannot sync a directory (EINVAL); there is nothing more to do there.
  if (result != 0 && errno != EINVAL) {
    fail(ErrorKind::kStorage, "{}: cannot sync folder: {}", path.string(), errno_text());
  }
}

// The kernel knows no waiting that ends.
bool lock_file(int fd, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kLockPoll);
  }
  return true;
}

uint64_t available_bytes(const std::filesystem::path& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) != 0) {
    fail(ErrorKind::kStorage, "{}: cannot ask for free space: {}", path.string(), errno_text());
  }
  return uint64_t(info.f_bavail) * info.f_frsize;
}

}  // namespace snug

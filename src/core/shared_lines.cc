#include "core/shared_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/file.h"

namespace snug {
namespace {

constexpr uint64_t kMostBytes = 64 << 20;  // that are read

// What is left of a line by a process that was killed, or a full disk, is ended first. In one
// write, so that nobody's line comes in between.
bool append(int fd, std::string_view line) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return false;
  char last = '\n';
  if (info.st_size > 0 && ::pread(fd, &last, 1, info.st_size - 1) < 0) return false;
  std::string text(last == '\n' ? "" : "\n");
  text.append(line).push_back('\n');
  ssize_t count = 0;
  do count = ::write(fd, text.data(), text.size());
  while (count < 0 && errno == EINTR);
  if (count >= 0 && size_t(count) < text.size()) errno = ENOSPC;
  return count == ssize_t(text.size());
}

}  // namespace

SharedLines::Turn::~Turn() {
  if (held()) ::close(fd_);
}

SharedLines::Turn& SharedLines::Turn::operator=(Turn&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int SharedLines::open() const {
  if (path_.has_parent_path()) make_directories(path_.parent_path());
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    fail(ErrorKind::kStorage, "{}: cannot open: {}", path_.string(), std::strerror(errno));
  }
  return fd;
}

SharedLines::Turn SharedLines::hold(std::chrono::milliseconds patience) const {
  Turn turn;
  turn.fd_ = open();
  return lock_file(turn.fd_, patience) ? std::move(turn) : Turn();
}

std::vector<std::string> SharedLines::fresh() {
  std::vector<std::string> lines;
  std::string text;
  try {
    const InputFile file(path_);
    const uint64_t end = std::min(file.size(), kMostBytes);
    if (end <= position_) return lines;
    text.resize(end - position_);
    text.resize(file.read_some(position_, text.data(), text.size()));
  } catch (const Error&) {
    return lines;
  }
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  position_ += begin;
  return lines;
}

void SharedLines::add(std::string_view line) const {
  SNUG_CHECK(line.find('\n') == std::string_view::npos);
  const int fd = open();
  const bool done = append(fd, line);
  const std::string reason = std::strerror(errno);
  ::close(fd);
  if (!done) fail(ErrorKind::kStorage, "{}: cannot add a line: {}", path_.string(), reason);
}

}  // namespace snug

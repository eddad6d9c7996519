// A file of lines that processes share: each appends, and takes in what the others have appended.
// It is never renamed or replaced, so a lock on it is a lock on the name too.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace snug {

class SharedLines {
 public:
  // Touches nothing on disk.
  explicit SharedLines(std::filesystem::path path) : path_(std::move(path)) {}

  // Excludes the turns of all others, by this object too, while it lives. The kernel ends that of a
  // dead process.
  class Turn {
   public:
    Turn() = default;
    ~Turn();
    Turn(Turn&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Turn& operator=(Turn&& other) noexcept;

    bool held() const { return fd_ >= 0; }

   private:
    friend SharedLines;
    int fd_ = -1;
  };

  // Makes the file where it is not there yet, which may fail (kStorage), and waits for a turn. Not
  // held: `patience` ran out, or the file system knows no locks.
  [[nodiscard]] Turn hold(std::chrono::milliseconds patience) const;
  // The lines added since the last call, by this object too, in the file's order; one without its
  // end is left for later. What cannot be read is not there, nor is anything beyond the first
  // 64 MiB.
  std::vector<std::string> fresh();
  // Appends a line, which others see on return; when it comes to the disk is the kernel's choice.
  // No turn is needed: lines come one behind the other anyway, and what a killed process has left
  // of one ends before it. Errors are kStorage.
  void add(std::string_view line) const;

 private:
  int open() const;

  std::filesystem::path path_;
  uint64_t position_ = 0;  // up to where lines were taken
};

}  // namespace snug

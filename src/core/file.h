// Files, checked where they are touched. Inputs are read with pread, never mapped: a file truncated
// under a mapping is a SIGBUS, under pread it is an error. Outputs appear whole or not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace snug {

// A regular file open for reading. Directories, devices, FIFOs and sockets are refused by name
// (kInput).
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }  // at opening
  int64_t mtime_ns() const { return mtime_ns_; }
  // Reads exactly [offset, offset + bytes); anything less is an error that names the file and the
  // place.
  void read_exactly(uint64_t offset, void* destination, size_t bytes) const;
  // Reads up to `bytes`, fewer only at the end of the file; returns the count.
  size_t read_some(uint64_t offset, void* destination, size_t bytes) const;
  // Tells the kernel that the cached pages of this range will not be needed again.
  void drop_cache(uint64_t offset, uint64_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  int64_t mtime_ns_ = 0;
};

// The whole of a small file; refuses more than `max_bytes` (kInput).
std::string read_small_file(const std::filesystem::path& path, uint64_t max_bytes = 64 << 20);

// Writes to `path` under a temporary name in the same folder; commit() syncs the file, renames it
// over `path` and syncs the folder. Destroyed without commit, it removes the temporary. Errors are
// kStorage and name the final path.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Does not move the end used by write().
  void write_at(uint64_t offset, const void* data, size_t bytes);
  void commit();

 private:
  void send();
  void sync_range(uint64_t begin, uint64_t end, unsigned flags);

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  uint64_t position_ = 0;
  uint64_t sent_ = 0, settled_ = 0;  // up to where it is on its way to the disk, and has come there
};

void write_file_atomically(const std::filesystem::path& path, std::string_view contents);
void make_directories(const std::filesystem::path& path);
void sync_directory(const std::filesystem::path& path);
// Locks an open file against all who open and lock it too; closing it, or the end of the process,
// lets go. False: another holds it for longer than `patience`, or the file system knows no locks.
bool lock_file(int fd, std::chrono::milliseconds patience);
// Free on the file system of `path`, for this user.
uint64_t available_bytes(const std::filesystem::path& path);

}  // namespace snug

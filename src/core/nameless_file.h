// A file without a name, for what memory has no room for: it goes with the process, however that
// ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace snug {

class NamelessFile {
 public:
  // In a folder that is made if need be. Every error is kStorage and names the folder and
  // `purpose`: "optimizer state".
  NamelessFile(const std::filesystem::path& folder, std::string purpose);
  ~NamelessFile();
  NamelessFile(NamelessFile&& other) noexcept;
  NamelessFile& operator=(NamelessFile&& other) noexcept;

  // Takes room on the disk, all zeros; where there is none, `advice` says what to do.
  void reserve(uint64_t bytes, const char* advice);
  void read(uint64_t offset, std::span<std::byte> to) const;
  void write(uint64_t offset, std::span<const std::byte> from);

 private:
  std::string folder_, purpose_;
  int descriptor_ = -1;
};

}  // namespace snug

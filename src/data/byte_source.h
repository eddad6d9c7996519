// Streams of bytes that readers pull from: a file, standard input, memory, or any of these
// decompressed. A compressed file is never expanded anywhere but into the caller's buffer, so a
// decompression bomb costs time, not memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace snug {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills up to `bytes` (> 0) and returns the count; 0 only at the end. Errors are kInput.
  virtual size_t read(char* destination, size_t bytes) = 0;
  virtual uint64_t stored_bytes() const = 0;  // taken from the file as stored, for progress
};

std::unique_ptr<ByteSource> file_source(const std::filesystem::path& path);
std::unique_ptr<ByteSource> stdin_source();
// A view: must outlive the source.
std::unique_ptr<ByteSource> memory_source(std::string_view bytes);

// `name` is the file for messages. Concatenated members and frames are one stream; data that ends
// early or is damaged is an error with the place in the compressed file.
std::unique_ptr<ByteSource> gzip_source(std::unique_ptr<ByteSource> stored, std::string name);
std::unique_ptr<ByteSource> zstd_source(std::unique_ptr<ByteSource> stored, std::string name);

// Adds up an XXH3 of everything that passes; `hash` must outlive the source and holds the hash of
// the whole once read() has returned 0.
std::unique_ptr<ByteSource> hashing_source(std::unique_ptr<ByteSource> stored, uint64_t* hash);

}  // namespace snug

// A file of scalars as TensorBoard reads it: records of protocol buffers with checksums (the
// TFRecord format).
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace snug {

struct Scalar {
  std::string tag;
  double value = 0;
};

class EventFile {
 public:
  explicit EventFile(std::filesystem::path path);  // begins the file anew
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void add(uint64_t step, const std::vector<Scalar>& scalars);
  void flush();

 private:
  void write_event(const std::string& fields);  // with the time before them

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace snug

// What a run leaves in its output folder besides the model and checkpoints: a lock while it runs, metrics.jsonl line by
// line, run.json at the end.
#pragma once

#include <cstdio>
#include <filesystem>

#include "snug/snug.h"

namespace snug {

// Held for the life of the object; a second run on the same folder is refused (kStorage). The kernel drops the lock of a
// dead process.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

class MetricsLog {
 public:
  // Keeps the lines of steps up to `resumed_step` that an earlier run wrote, drops the rest.
  MetricsLog(const std::filesystem::path& file, uint64_t resumed_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(uint64_t step, double epoch, const std::map<std::string, double>& metrics);

 private:
  void line(const std::string& text);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace snug

// Output folders: which of them may be written into, and what a run writes there while it goes,
// besides checkpoints: a lock, and metrics.jsonl line by line with the same numbers for
// TensorBoard.
#pragma once

#include <cstdio>
#include <filesystem>

#include "core/json.h"
#include "snug/snug.h"
#include "train/event_file.h"

namespace snug {

// For commands that make a new folder out of an old one: a model or adapters that are there
// already, perhaps the very ones that are read, are not written over (kUsage).
void refuse_folder_with_model(const std::filesystem::path& folder);

// Held for the life of the object; a second run on the same folder is refused (kStorage). The
// kernel drops the lock of a dead process.
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
  MetricsLog(const std::filesystem::path& folder, uint64_t resumed_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(uint64_t step, double epoch, const std::map<std::string, double>& metrics);

 private:
  void line(const std::string& text);
  void add_events(const Json& line);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
  EventFile events_;
};

}  // namespace snug

// The model that a run learns from (--teacher), checked against its student before data is read or
// memory is taken.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/model_folder.h"
#include "train/task.h"

namespace snug {

struct Teacher {
  std::filesystem::path path;
  ModelConfig config;
  LabelSet labels;           // of a classifier; empty where its files only number them
  uint64_t fingerprint = 0;  // of its weights: their names, shapes and some values of each
};

// A teacher has its student's vocabulary and a trained head for the task (kInput), which is one
// that teachers are for (kUsage).
Teacher open_teacher(const std::filesystem::path& path, const ModelFolder& student, Task task);

// That it tells the same classes apart, in the same order.
void check_labels(const Teacher& teacher, const std::vector<std::string>& student);

}  // namespace snug

// The GPU as training and inference see it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "runtime/platform.h"

namespace snug::cuda {

struct PlatformOptions {
  std::string device;  // "cuda" or "cuda:N"
  std::filesystem::path cache_folder;
  bool allow_tf32 = false;
};

std::unique_ptr<Platform> open_platform(const PlatformOptions& options);

}  // namespace snug::cuda

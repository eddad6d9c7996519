// Opens the device that --device names.
#pragma once

#include <filesystem>
#include <memory>

#include "runtime/platform.h"
#include "snug/snug.h"

namespace snug {

std::unique_ptr<Platform> open_platform(const CommonOptions& options);

// Where snug keeps what it can make again: tokenized data, timed algorithms.
std::filesystem::path cache_folder(const CommonOptions& options);

}  // namespace snug

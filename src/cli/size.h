// Sizes as users write them.
#pragma once

#include <cstdint>
#include <string>

namespace snug {

// "8GiB", "8GB", "512MiB", "1.5GB", "8589934592". A bare "8G" means 8 GB, the smaller reading: a
// budget is never taken for more than was meant. Anything else is a usage error.
uint64_t parse_size(const std::string& text);

}  // namespace snug

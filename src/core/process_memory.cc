#include "core/process_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace snug {
namespace {

// "VmRSS:   1234 kB" in /proc/self/status, "MemAvailable: ..." in /proc/meminfo; 0 when absent.
uint64_t field_kib(const char* file, const char* name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) == 0) return std::stoull(line.substr(std::strlen(name)));
  }
  return 0;
}

std::optional<uint64_t> read_number(const std::filesystem::path& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;  // absent, or "max"
}

uint64_t stat_field(const std::filesystem::path& path, const std::string& name) {
  std::ifstream in(path);
  std::string key;
  for (uint64_t value; in >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

struct Limit {
  uint64_t bytes;
  uint64_t used_without_cache;
};

struct Flavour {
  const char *root, *limit, *usage, *inactive_cache;
};
constexpr Flavour kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr Flavour kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                               "memory.usage_in_bytes", "total_inactive_file"};
// Version 1 writes "no limit" as the largest multiple of the page size.
constexpr uint64_t kUnlimited = uint64_t{1} << 60;

std::optional<Limit> tightest(const Flavour& flavour, std::string group) {
  std::optional<Limit> result;
  const std::filesystem::path root = flavour.root;
  for (;; group = std::filesystem::path(group).parent_path().string()) {
    const auto folder = group.empty() || group == "/" ? root : root / group.substr(1);
    const auto limit = read_number(folder / flavour.limit);
    if (limit && *limit < kUnlimited && (!result || *limit < result->bytes)) {
      const uint64_t usage = read_number(folder / flavour.usage).value_or(0);
      const uint64_t cache = stat_field(folder / "memory.stat", flavour.inactive_cache);
      result = Limit{*limit, usage - std::min(usage, cache)};
    }
    if (group.empty() || group == "/") return result;
  }
}

std::optional<Limit> cgroup_limit() {
  std::optional<Limit> result;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    // "ID:CONTROLLERS:PATH"; version 2 has no controllers.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    std::optional<Limit> found;
    if (controllers.empty()) found = tightest(kVersion2, path);
    if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      found = tightest(kVersion1, path);
    }
    // In a container the path may be the host's: the mount's own root is the limit that applies.
    if (!found && controllers.empty()) found = tightest(kVersion2, "/");
    if (found && (!result || found->bytes < result->bytes)) result = found;
  }
  return result;
}

}  // namespace

// The quick figure in /proc/self/status lags behind by up to 64 pages a processor; this one is
// counted.
uint64_t resident_bytes() { return field_kib("/proc/self/smaps_rollup", "Rss:") * 1024; }
uint64_t peak_resident_bytes() { return field_kib("/proc/self/status", "VmHWM:") * 1024; }

std::optional<uint64_t> cgroup_limit_bytes() {
  const auto limit = cgroup_limit();
  return limit ? std::optional(limit->bytes) : std::nullopt;
}

uint64_t usable_memory_bytes() {
  const uint64_t own = resident_bytes();
  uint64_t usable = field_kib("/proc/meminfo", "MemAvailable:") * 1024 + own;
  if (const auto limit = cgroup_limit()) {
    const uint64_t others = limit->used_without_cache - std::min(limit->used_without_cache, own);
    usable = std::min(usable, limit->bytes - std::min(limit->bytes, others));
  }
  return usable;
}

void settle_allocator() {
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 10);
}

void touch_libraries() {
  constexpr uintptr_t kLargest = 4 << 20;  // larger ones are tables of which a run uses little
  const auto page = uintptr_t(::sysconf(_SC_PAGESIZE));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %lu", &begin, &end, rights, &inode) != 4) {
      continue;
    }
    if (inode == 0 || rights[0] != 'r' || end - begin > kLargest ||
        line.find(".so") == std::string::npos) {
      continue;
    }
    for (uintptr_t at = begin; at < end; at += page) {
      (void)*reinterpret_cast<const volatile char*>(at);
    }
  }
}

void trim_allocator() { ::malloc_trim(0); }

}  // namespace snug

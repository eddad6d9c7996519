// What this process occupies, and what it may occupy. On a CPU run the budget is resident memory.
#pragma once

#include <cstdint>
#include <optional>

namespace snug {

uint64_t resident_bytes();       // now
uint64_t peak_resident_bytes();  // since the process began (VmHWM)

// The tightest memory limit of the cgroups this process is in (v1 and v2, over all ancestors).
std::optional<uint64_t> cgroup_limit_bytes();
// What the process could still take: what the machine has available, or the cgroup's limit less
// what it uses without its page cache, whichever is smaller; this process's own resident memory
// included.
uint64_t usable_memory_bytes();

// Makes the allocator predictable: one heap, large blocks returned to the system at once.
void settle_allocator();
// Reads every page of the shared libraries once. The system maps a few neighbours with each page
// that is used, which ones depends on chance; with all of them there, two starts of the program
// occupy the same.
void touch_libraries();
// Gives freed heap pages back, so that resident_bytes() shows what is really held.
void trim_allocator();

}  // namespace snug

#include "core/threads.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace snug {
namespace {

int allowed_processors() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

int num_threads() { return ::omp_get_max_threads(); }

void set_num_threads(int threads) {
  ::omp_set_dynamic(0);
  ::omp_set_num_threads(threads > 0 ? threads : allowed_processors());
}

void sleep_at_barriers(char** argv) {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  if (std::getenv(kPolicy) || std::getenv("GOMP_SPINCOUNT")) return;
  if (::setenv(kPolicy, "passive", 1) != 0) return;
  ::execv("/proc/self/exe", argv);  // where that fails, threads spin
}

}  // namespace snug

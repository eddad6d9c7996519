#include "core/threads.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>

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

}  // namespace snug

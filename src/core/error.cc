#include "core/error.h"

#include <cstdio>
#include <cstdlib>

namespace snug {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "snug: internal error: %s does not hold (%s:%d). This is a bug in snug.\n",
               condition, file, line);
  std::abort();
}

}  // namespace snug

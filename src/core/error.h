// How snug fails. User's fault: throw Error with a kind, caught once in main and mapped to the exit
// code. Our fault: SNUG_CHECK, which no input can reach.
#pragma once

#include <fmt/format.h>

#include "snug/error.h"

namespace snug {

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace snug

// An invariant of ours. Active in every build; prints the place and aborts.
#define SNUG_CHECK(condition) \
  ((condition) ? void(0) : ::snug::check_failed(#condition, __FILE__, __LINE__))

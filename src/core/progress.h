// One line on standard error for anything that may take over two seconds: nothing at all before
// that, at most ten updates a second after, rewritten in place on a terminal and one line every ten
// seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace snug {

class Progress {
 public:
  // total 0: unknown. `unit` is what is counted: "rows", "bytes", "steps".
  Progress(std::string title, uint64_t total, std::string unit);
  ~Progress();  // finishes the line if one was shown
  void update(uint64_t done, const std::string& note = {});

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_, unit_;
  uint64_t total_;
  Clock::time_point start_, last_shown_;
  bool terminal_, shown_ = false;
};

// Standard error, unless quieted (tests, library use).
void set_quiet(bool quiet);
bool quiet();
void say(const std::string& line);   // one line on standard error
void warn(const std::string& line);  // "warning: ..."

std::string format_bytes(uint64_t bytes);  // "6.31 GiB", "317 MiB", "12 B"

}  // namespace snug

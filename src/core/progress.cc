#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

namespace snug {
namespace {

std::atomic<bool> g_quiet = false;

}  // namespace

void set_quiet(bool quiet) { g_quiet = quiet; }
bool quiet() { return g_quiet; }

void say(const std::string& line) {
  if (g_quiet) return;
  // A closed or full standard error must not hurt training: the result is ignored on purpose.
  (void)!::write(STDERR_FILENO, (line + "\n").c_str(), line.size() + 1);
}

void warn(const std::string& line) { say("warning: " + line); }

Progress::Progress(std::string title, uint64_t total, std::string unit)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      start_(Clock::now()),
      last_shown_(start_),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::update(uint64_t done, const std::string& note) {
  const auto now = Clock::now();
  const double since_start = std::chrono::duration<double>(now - start_).count();
  const double since_shown = std::chrono::duration<double>(now - last_shown_).count();
  const double interval = terminal_ ? 0.1 : 10.0;
  if (quiet() || since_start < 2.0 || (shown_ && since_shown < interval)) return;
  last_shown_ = now;
  shown_ = true;
  std::string line = fmt::format("{}: {}", title_, done);
  if (total_ > 0) {
    const double left =
        done > 0 ? since_start * double(total_ - std::min(done, total_)) / double(done) : 0;
    line += fmt::format("/{} {} ({:.0f} %, {:.0f} s left)", total_, unit_,
                        100.0 * double(done) / double(total_), left);
  } else {
    line += " " + unit_;
  }
  if (!note.empty()) line += ", " + note;
  line = terminal_ ? "\r\033[K" + line : line + "\n";
  (void)!::write(STDERR_FILENO, line.c_str(), line.size());
}

Progress::~Progress() {
  if (shown_ && terminal_) (void)!::write(STDERR_FILENO, "\r\033[K", 4);
}

std::string format_bytes(uint64_t bytes) {
  const double value = double(bytes);
  if (bytes >= uint64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= uint64_t{10} << 20) return fmt::format("{:.0f} MiB", value / (1 << 20));
  if (bytes >= uint64_t{1} << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  if (bytes >= uint64_t{1} << 10) return fmt::format("{:.0f} KiB", value / (1 << 10));
  return fmt::format("{} B", bytes);
}

}  // namespace snug

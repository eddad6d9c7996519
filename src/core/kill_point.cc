#include "core/kill_point.h"

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>

namespace snug {
namespace {

std::atomic<int> g_passages = 0;

struct Request {
  std::string_view name;
  int passage = 1;
};

// Names may hold colons themselves ("checkpoint:renamed"), so only a number after the last one is a
// count.
Request parse_request(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return {text};
  const std::string_view digits = text.substr(colon + 1);
  int passage = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), passage);
  if (error != std::errc() || end != digits.data() + digits.size()) return {text};
  return {text.substr(0, colon), passage};
}

}  // namespace

void kill_point(std::string_view name) {
  const char* wanted = std::getenv("SNUG_TEST_KILL_POINT");
  if (wanted == nullptr) return;
  const Request request = parse_request(wanted);
  if (request.name != "any" && request.name != name) return;
  if (++g_passages == request.passage) std::raise(SIGKILL);
}

}  // namespace snug

#include "cli/size.h"

#include <cctype>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace snug {
namespace {

// 0 for an unknown unit.
double unit_bytes(std::string unit) {
  for (char& c : unit) c = char(std::tolower(static_cast<unsigned char>(c)));
  if (unit.empty() || unit == "b") return 1;
  const size_t power = std::string("kmgt").find(unit[0]);
  if (power == std::string::npos) return 0;
  const std::string rest = unit.substr(1);
  if (rest.empty() || rest == "b") return std::pow(1000.0, double(power + 1));
  return rest == "ib" ? std::pow(1024.0, double(power + 1)) : 0;
}

}  // namespace

uint64_t parse_size(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  const double bytes = number * unit_bytes(unit);
  const bool valid = error == std::errc() && std::isfinite(number) && number >= 0 &&
                     unit_bytes(unit) > 0 && bytes < 0x1p63;
  if (!valid) {
    fail(ErrorKind::kUsage, "\"{}\" is not a size; write it as 8GiB, 8GB, 512MiB or in bytes",
         text);
  }
  return uint64_t(bytes);
}

}  // namespace snug

// Reads what the device is from the environment. The management library reads it too, so nothing
// here needs the runtime.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "emulated_gpu/runtime.h"

namespace emulated {
namespace {

constexpr const char* kVariable = "SNUG_EMULATED_GPU";

[[noreturn]] void refuse(std::string_view setting, const char* why) {
  std::fprintf(stderr, "%s: \"%.*s\": %s\n", kVariable, int(setting.size()), setting.data(), why);
  std::exit(2);
}

struct Setting {
  std::string_view text, name, value;
};

Setting setting_of(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) refuse(text, "expected name=value");
  return {text, text.substr(0, equals), text.substr(equals + 1)};
}

// The number that `text` begins with, which is cut off.
uint64_t take_number(const Setting& setting, std::string_view& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) refuse(setting.text, "expected a number");
  text.remove_prefix(size_t(end - text.data()));
  return number;
}

size_t bytes_in(const Setting& setting) {
  std::string_view unit = setting.value;
  const uint64_t number = take_number(setting, unit);
  const int shift = unit.empty()    ? 0
                    : unit == "KiB" ? 10
                    : unit == "MiB" ? 20
                    : unit == "GiB" ? 30
                                    : -1;
  if (shift < 0 || number > SIZE_MAX >> shift) {
    refuse(setting.text, "expected bytes, KiB, MiB or GiB");
  }
  return size_t(number) << shift;
}

int count_in(const Setting& setting) {
  std::string_view rest = setting.value;
  const uint64_t number = take_number(setting, rest);
  if (!rest.empty() || number > INT32_MAX) refuse(setting.text, "expected a whole number");
  return int(number);
}

// 11.8 is 11080, as CUDA counts.
int version_in(const Setting& setting) {
  std::string_view rest = setting.value;
  const uint64_t major = take_number(setting, rest);
  uint64_t minor = 0;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    minor = take_number(setting, rest);
  }
  if (!rest.empty() || major > 999 || minor > 99) refuse(setting.text, "expected major.minor");
  return int(major * 1000 + minor * 10);
}

void apply(const Setting& setting, Device& device) {
  if (setting.name == "devices") {
    device.count = count_in(setting);
  } else if (setting.name == "driver") {
    device.driver = version_in(setting);
  } else if (setting.name == "capability") {
    device.capability = count_in(setting);
  } else if (setting.name == "multiprocessors") {
    device.multiprocessors = count_in(setting);
  } else if (setting.name == "memory") {
    device.memory_bytes = bytes_in(setting);
  } else if (setting.name == "context") {
    device.context_bytes = bytes_in(setting);
  } else if (setting.name == "code") {
    device.code_bytes = bytes_in(setting);
  } else if (setting.name == "neighbours") {
    device.neighbours_bytes = bytes_in(setting);
  } else if (setting.name == "failing_allocation") {
    device.failing_allocation = count_in(setting);
  } else if (setting.name == "failing_work") {
    device.failing_work = count_in(setting);
  } else {
    refuse(setting.text, "there is no such setting");
  }
}

Device described(std::string_view text) {
  Device device;
  while (true) {
    const size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return device;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find(' '));
    apply(setting_of(word), device);
    text.remove_prefix(word.size());
  }
}

}  // namespace

const Device& device() {
  static const Device device = [] {
    const char* const text = std::getenv(kVariable);
    return described(text ? text : "");
  }();
  return device;
}

}  // namespace emulated

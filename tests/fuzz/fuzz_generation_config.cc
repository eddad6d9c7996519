// generation_config.json: whatever the bytes, parsing ends in an Error or in numbers that writing
// can be done with.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "train/generation_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  snug::GenerationConfig config;
  try {
    config = snug::parse_generation_config(text, "generation_config.json");
  } catch (const snug::Error&) {
    return 0;
  }
  const bool good = config.max_new_tokens.value_or(1) > 0 && config.top_k.value_or(0) >= 0 &&
                    config.temperature.value_or(0) >= 0 && config.top_p.value_or(1) > 0 &&
                    config.top_p.value_or(1) <= 1 && config.repetition_penalty.value_or(1) > 0;
  if (!good) std::abort();
  for (const int32_t id : config.ends) {
    if (id < 0) std::abort();
  }
  return 0;
}

// config.json: whatever the bytes, parsing ends in an Error or in a configuration whose sizes are
// in bounds and which survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  snug::ModelConfig config;
  try {
    config = snug::parse_config(text, "config.json");
  } catch (const snug::Error&) {
    return 0;
  }
  if (config.hidden_size % config.num_attention_heads != 0 || config.max_length() < 1) std::abort();
  // No Error is expected from here on.
  // Which has classes.
  const snug::Head head = config.labels.empty() ? snug::Head::kNone : snug::Head::kClassifier;
  const snug::ModelConfig again =
      snug::parse_config(snug::to_json(config, head), "written config.json");
  const bool same = again.labels == config.labels && again.vocab_size == config.vocab_size &&
                    again.hidden_act == config.hidden_act;
  if (!same) std::abort();
  return 0;
}

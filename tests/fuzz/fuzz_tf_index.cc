// The table in the index of a TensorFlow checkpoint: whatever the bytes, reading ends in sorted
// entries inside of the file, or in an Error. Checksums would keep the fuzzer out, so the second
// half of its work begins behind them: the same bytes as a message of protocol buffers and as the
// name of a variable.
#include <cstdlib>

#include "core/error.h"
#include "core/wire_reader.h"
#include "model/sorted_table.h"
#include "model/tf_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto entries = snug::read_sorted_table(bytes, "fuzz.index");
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string_view value = entries[i].value;
      if (value.data() < bytes.data() ||
          value.data() + value.size() > bytes.data() + bytes.size()) {
        std::abort();
      }
      if (i > 0 && entries[i - 1].key >= entries[i].key) std::abort();
    }
  } catch (const snug::Error&) {
  }
  std::string_view message = bytes;
  while (!message.empty()) {
    const size_t before = message.size();
    if (!snug::take_field(message)) break;
    if (message.size() >= before) std::abort();
  }
  snug::model_name(bytes.substr(0, 256));
  return 0;
}

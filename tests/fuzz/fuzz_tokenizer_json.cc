// tokenizer.json: any bytes either load into a tokenizer that can encode, or are refused with an
// Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = parse_tokenizer_json(input, "tokenizer.json");
    Encoding out;
    tokenizer->encode("Unaffable [SEP] caf\xC3\xA9 \xE4\xB8\xAD, <new> word", input.substr(0, 256),
                      {.with_offsets = true}, out);
    for (int32_t id : out.ids) tokenizer->token(id);
    tokenizer->decode(out.ids, true);
  } catch (const Error&) {
  }
  return 0;
}

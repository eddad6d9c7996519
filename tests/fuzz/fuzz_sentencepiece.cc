// A SentencePiece model file: any bytes either load into a tokenizer that can encode, or are
// refused with an Error. What the library is given has been looked through before.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string text =
      "Hello\xC2\xA0 e\xCC\x81 \xEF\xAC\x81ve 12, \xE2\x96\x81 " + input.substr(0, 256);
  try {
    const auto tokenizer = parse_sentencepiece(input, "spiece.model");
    Encoding out;
    tokenizer->encode(text, text, {.with_offsets = true}, out);
    if (out.ids.size() != out.offsets.size()) std::abort();
    for (const Span& span : out.offsets) {
      if (span.begin > span.end || span.end > text.size()) std::abort();
    }
    for (int32_t id : out.ids) tokenizer->token(id);
    tokenizer->decode(out.ids, true);
  } catch (const Error&) {
  }
  return 0;
}

// vocab.txt, then a text through the tokenizer it makes. The input is the two, with the first NUL
// between them; an odd length means a cased tokenizer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.find('\0'), size);
  const std::string_view text = input.substr(std::min(border + 1, size));
  try {
    const auto tokenizer =
        parse_vocab(input.substr(0, border), "vocab.txt", {{{"do_lower_case", size % 2 == 0}}});
    Encoding whole, cut;
    tokenizer->encode(text, std::nullopt, {.special_tokens = false, .with_offsets = true}, whole);
    tokenizer->encode(text, text, {.max_length = 16}, cut);
    if (cut.ids.size() > 16 || whole.ids.size() != whole.offsets.size()) std::abort();
    for (const Span& span : whole.offsets) {
      if (span.begin > span.end || span.end > text.size()) std::abort();
    }
    tokenizer->encode_windows(text, std::nullopt, 3, {.max_length = 8});
  } catch (const Error&) {
  }
  return 0;
}

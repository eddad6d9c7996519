// merges.txt, then a text through the tokenizer it makes. The input is the two, with the first NUL
// between them; the vocabulary is the 256 bytes and whatever two words of a line make together.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/text_stream.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace {

std::string make_vocab(std::string_view merges) {
  std::set<std::string> seen;
  snug::Json vocab = snug::Json::object();
  const auto add = [&](const std::string& token) {
    if (seen.insert(token).second) vocab[token] = seen.size() - 1;
  };
  for (uint8_t byte : snug::byte_order()) add(snug::spell_bytes(std::string(1, char(byte))));
  add("<|endoftext|>");
  for (size_t pos = 0; pos < merges.size();) {
    const size_t end = std::min(merges.find('\n', pos), merges.size());
    std::string line(merges.substr(pos, end - pos));
    std::erase(line, ' ');
    std::erase(line, '\r');
    if (!line.empty() && snug::find_invalid_utf8(line) == std::string::npos) add(line);
    pos = end + 1;
  }
  return vocab.dump();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.find('\0'), size);
  const std::string_view merges = input.substr(0, border),
                         text = input.substr(std::min(border + 1, size));
  const std::string vocab = make_vocab(merges);
  try {
    const auto tokenizer = parse_vocab_and_merges({vocab, "vocab.json"}, {merges, "merges.txt"},
                                                  {{{"add_prefix_space", size % 2 == 0}}});
    Encoding whole, cut;
    tokenizer->encode(text, std::nullopt, {.with_offsets = true}, whole);
    tokenizer->encode(text, text, {.max_length = 16}, cut);
    if (cut.ids.size() > 16 || whole.ids.size() != whole.offsets.size()) std::abort();
    for (const Span& span : whole.offsets) {
      if (span.begin > span.end || span.end > text.size()) std::abort();
    }
    const std::string decoded = tokenizer->decode(whole.ids, false);
    if (size % 2 == 1 && decoded != replace_invalid_utf8(text)) std::abort();
    TextStream stream(*tokenizer, TextStream::Specials::kShow);
    std::string streamed;
    for (int32_t id : whole.ids) streamed += stream.push(id);
    if (streamed + stream.flush() != decoded) std::abort();
    tokenizer->encode_windows(text, std::nullopt, 3, {.max_length = 8});
  } catch (const Error&) {
  }
  return 0;
}

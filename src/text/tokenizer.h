// Text to token ids and back. One interface for every family; implementations are immutable after
// loading and safe to share between threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Unicode code points of the original text, end exclusive. Special tokens have {0, 0}.
struct Span {
  uint32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t>
      type_ids;  // 0 for the first text and its specials, 1 for the second; 2 for XLNet's <cls>
  std::vector<Span> offsets;                // filled only when asked for
  size_t second_begin = 0, second_end = 0;  // where the second text's own tokens are

  void clear();
};

enum class Truncation { kNone, kLongestFirst, kOnlyFirst, kOnlySecond };

// What stays of a text that is shortened; of the middle as much goes as must.
enum class Keep : uint8_t { kHead, kTail, kHeadAndTail };

struct EncodeOptions {
  size_t max_length = 0;  // tokens including specials; 0: no limit
  Truncation truncation = Truncation::kLongestFirst;
  Keep keep = Keep::kHead;
  bool special_tokens = true;
  bool with_offsets = false;
  // Bytes that a word may take while it is tokenized, with the text that it is read from: what has
  // no white space is tokenized whole, and takes many times its length. More is kBudget.
  uint64_t word_room = std::numeric_limits<uint64_t>::max();
};

// Room that is there whatever the budget: of words up to some thousand bytes.
inline constexpr uint64_t kUsualWordRoom = 4 << 20;

struct SpecialIds {
  int32_t pad = -1, unk = -1, cls = -1, sep = -1, mask = -1, bos = -1, eos = -1;  // -1: none
};

// Where a token stands in a decoded text: WordPiece puts no space before the first.
enum class TextPlace { kStart, kInside };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Replaces the contents of `out`, keeping its capacity. Each maximal ill-formed part of the UTF-8
  // counts as one U+FFFD, as when Python decodes with errors="replace". Errors: a max_length
  // without room for the special tokens, or only_second where there is no pair to shorten, is
  // kUsage; a text that would be shortened to nothing is kInput.
  virtual void encode(std::string_view text, std::optional<std::string_view> pair,
                      const EncodeOptions& options, Encoding& out) const = 0;

  // A long text in overlapping windows of max_length tokens; consecutive windows share `stride`
  // tokens of it. With a pair (extractive question answering) the second text is cut and every
  // window repeats the first; options.truncation is not looked at. A stride that is no less than
  // the window is kUsage; a first text that leaves too little room is kInput.
  virtual std::vector<Encoding> encode_windows(std::string_view text,
                                               std::optional<std::string_view> pair, size_t stride,
                                               const EncodeOptions& options) const = 0;

  // The text of these ids; an id without a token adds nothing. Byte-level BPE gives back the
  // encoded text byte by byte; what does not make up whole characters becomes U+FFFD, as when
  // encoding. WordPiece can only join words with spaces and tidy those before punctuation.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  // What one token adds to such a text. A token of byte-level BPE may be a part of a character.
  virtual std::string token_bytes(int32_t id, TextPlace place = TextPlace::kInside) const;
  virtual bool is_special(int32_t id) const;  // left out by skip_special_tokens

  virtual int32_t vocab_size() const = 0;  // highest id + 1
  virtual const SpecialIds& special_ids() const = 0;
  virtual std::string_view token(int32_t id) const = 0;
  virtual int32_t find(std::string_view token) const = 0;  // id of exactly this token, or -1
  virtual size_t model_max_length() const = 0;             // as the files state it; 0: they do not
  // What a long word takes while it is tokenized whole, in its own bytes; 0: no more than its text.
  virtual uint64_t word_times() const { return 0; }
  // Identifies vocabulary and behaviour: two tokenizers with one fingerprint encode alike.
  virtual uint64_t fingerprint() const = 0;
  // Writes the files from which both snug and transformers load this tokenizer again.
  virtual void save(const std::filesystem::path& folder) const = 0;
};

// From a Hugging Face model folder: tokenizer.json; or vocab.txt, or vocab.json and merges.txt (or,
// as OpenAI named them, encoder.json and vocab.bpe), or a SentencePiece model (spiece.model and the
// like), with tokenizer_config.json where there is one.
// Errors are kInput.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);

}  // namespace snug

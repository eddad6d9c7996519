#include "text/unicode.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.h"

namespace snug {
namespace {

constexpr int kCategoriesVersion = 8, kDecompositionVersion = 9, kGpt2CategoriesVersion = 16;

struct CategoryChange {
  char32_t code_point;
  UCharCategory then;
};
// Characters of Unicode 8.0 that a later version moved to another category, where it matters here.
constexpr CategoryChange kCategoryChanges[] = {
    {0x166D, U_OTHER_PUNCTUATION},      {0x1734, U_NON_SPACING_MARK},
    {0x1885, U_OTHER_LETTER},           {0x1886, U_OTHER_LETTER},
    {0xA9BD, U_COMBINING_SPACING_MARK}, {0x111C9, U_OTHER_PUNCTUATION},
};

struct LowerRange {
  char32_t first, last, step, lower;
};
// Upper-case letters of Unicode 16.0 and 17.0, which the ICU of a stable distribution may not know
// yet.
constexpr LowerRange kNewLower[] = {
    {0x1C89, 0x1C89, 1, 0x1C8A},    {0xA7CB, 0xA7CB, 1, 0x0264},    {0xA7CC, 0xA7CE, 2, 0xA7CD},
    {0xA7D2, 0xA7D4, 2, 0xA7D3},    {0xA7DA, 0xA7DA, 1, 0xA7DB},    {0xA7DC, 0xA7DC, 1, 0x019B},
    {0x10D50, 0x10D65, 1, 0x10D70}, {0x16EA0, 0x16EB8, 1, 0x16EBB},
};

bool is_new_letter(char32_t c) {
  return std::any_of(std::begin(kNewLower), std::end(kNewLower), [c](const LowerRange& range) {
    const char32_t span = range.last - range.first;
    return (c >= range.first && c <= range.last) || (c >= range.lower && c <= range.lower + span);
  });
}

struct FlagRange {
  char32_t first, last;
  CharFlag flag;
};
// Letters and numbers of Unicode 15.1 and 16.0, for the same reason.
constexpr FlagRange kNewLetters[] = {
    {0x1C89, 0x1C8A, kCharLetter},   {0xA7CB, 0xA7CD, kCharLetter},
    {0xA7DA, 0xA7DC, kCharLetter},   {0x105C0, 0x105F3, kCharLetter},
    {0x10D40, 0x10D49, kCharNumber}, {0x10D4A, 0x10D65, kCharLetter},
    {0x10D6F, 0x10D85, kCharLetter}, {0x10EC2, 0x10EC4, kCharLetter},
    {0x11380, 0x11389, kCharLetter}, {0x1138B, 0x1138B, kCharLetter},
    {0x1138E, 0x1138E, kCharLetter}, {0x11390, 0x113B5, kCharLetter},
    {0x113B7, 0x113B7, kCharLetter}, {0x113D1, 0x113D1, kCharLetter},
    {0x113D3, 0x113D3, kCharLetter}, {0x116D0, 0x116E3, kCharNumber},
    {0x11BC0, 0x11BE0, kCharLetter}, {0x11BF0, 0x11BF9, kCharNumber},
    {0x13460, 0x143FA, kCharLetter}, {0x16100, 0x1611D, kCharLetter},
    {0x16130, 0x16139, kCharNumber}, {0x16D40, 0x16D6C, kCharLetter},
    {0x16D70, 0x16D79, kCharNumber}, {0x18CFF, 0x18CFF, kCharLetter},
    {0x1CCF0, 0x1CCF9, kCharNumber}, {0x1E5D0, 0x1E5ED, kCharLetter},
    {0x1E5F0, 0x1E5F0, kCharLetter}, {0x1E5F1, 0x1E5FA, kCharNumber},
    {0x2EBF0, 0x2EE5D, kCharLetter},
};

struct Range {
  char32_t first, last;
};
// As the reference has them, with its gap: U+2B820 to U+2B91F were forgotten there.
constexpr Range kCjk[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                          {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                          {0x2F800, 0x2FA1F}};

int age(char32_t c) {
  UVersionInfo version;
  u_charAge(static_cast<UChar32>(c), version);
  return version[0];
}

using GetNormalizer = const UNormalizer2* (*)(UErrorCode*);

template <GetNormalizer get>
const UNormalizer2* normalizer() {
  static const UNormalizer2* const instance = [] {
    UErrorCode status = U_ZERO_ERROR;
    const UNormalizer2* found = get(&status);
    SNUG_CHECK(U_SUCCESS(status));
    return found;
  }();
  return instance;
}

const UNormalizer2* nfd() { return normalizer<unorm2_getNFDInstance>(); }
const UNormalizer2* nfkd() { return normalizer<unorm2_getNFKDInstance>(); }
const UNormalizer2* nfc() { return normalizer<unorm2_getNFCInstance>(); }

int category(char32_t c) {
  for (const CategoryChange& change : kCategoryChanges) {
    if (change.code_point == c) return change.then;
  }
  return age(c) <= kCategoriesVersion ? u_charType(static_cast<UChar32>(c)) : int{U_UNASSIGNED};
}

bool is_ascii_punct(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

uint16_t gpt2_flags(char32_t c) {
  for (const FlagRange& range : kNewLetters) {
    if (c >= range.first && c <= range.last) return range.flag;
  }
  if (age(c) > kGpt2CategoriesVersion) return 0;
  const uint32_t type = U_MASK(u_charType(static_cast<UChar32>(c)));
  return type & U_GC_L_MASK ? kCharLetter : type & U_GC_N_MASK ? kCharNumber : 0;
}

uint16_t category_flags(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return 0;
  const int type = category(c);
  uint16_t flags = 0;
  if (U_MASK(type) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) flags |= kCharDropped;
  if ((U_MASK(type) & U_GC_P_MASK) || is_ascii_punct(c)) flags |= kCharPunct;
  if (type == U_NON_SPACING_MARK) flags |= kCharMark;
  return flags;
}

// As in Unicode 9.0: three characters have come or gone since.
bool is_mark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;
  return c != 0x111C9 && (U_MASK(u_charType(static_cast<UChar32>(c))) & U_GC_M_MASK);
}

uint16_t compute_flags(char32_t c) {
  const UChar32 u = static_cast<UChar32>(c);
  uint16_t flags = category_flags(c) | gpt2_flags(c);
  if (c == 0xFFFD) flags |= kCharDropped;
  if (u_isUWhiteSpace(u)) flags |= kCharSpace;
  for (const Range& range : kCjk) {
    if (c >= range.first && c <= range.last) flags |= kCharCjk;
  }
  CodePoints out;
  if (to_lower_case(c, out) != 1 || out[0] != c) flags |= kCharUpper;
  if (c < 0xC0 || age(c) > kDecompositionVersion) return flags;
  if (u_getCombiningClass(u) != 0) flags |= kCharNonStarter;
  if (is_mark(c)) flags |= kCharAnyMark;
  UChar units[16];
  UErrorCode status = U_ZERO_ERROR;
  if (unorm2_getRawDecomposition(nfd(), u, units, 16, &status) >= 0) flags |= kCharDecomposes;
  return flags;
}

template <size_t kSize>
size_t decompose_by(const UNormalizer2* form, char32_t c, std::array<char32_t, kSize>& out) {
  UChar units[2 * kSize];
  UErrorCode status = U_ZERO_ERROR;
  const int32_t length =
      unorm2_getDecomposition(form, static_cast<UChar32>(c), units, 2 * kSize, &status);
  SNUG_CHECK(U_SUCCESS(status));
  size_t count = 0;
  for (int32_t i = 0; i < length;) {
    UChar32 next;
    U16_NEXT(units, i, length, next);
    SNUG_CHECK(count < out.size());
    out[count++] = static_cast<char32_t>(next);
  }
  if (length < 0) out[count++] = c;
  return count;
}

// The one answer for a whole block of 128, where there is one: building the table then does not ask
// ICU about each of a million code points. The last block of a plane holds noncharacters, so it is
// never uniform.
std::optional<uint16_t> uniform_flags(char32_t start) {
  const auto within = [start](char32_t first, char32_t end) {
    return start >= first && start < end;
  };
  if ((start & 0xFFFF) == 0xFF80) return std::nullopt;
  if (within(0xAC00, 0xD780)) return kCharDecomposes | kCharLetter;  // Hangul syllables
  if (within(0x3400, 0x4D80) || within(0x4E00, 0x9F80) || within(0x20000, 0x2A680)) {
    return kCharCjk | kCharLetter;
  }
  if (within(0x32400, 0xE0000) || within(0xE1000, 0xF0000)) return uint16_t{0};
  if (start >= 0xF0000) return kCharDropped;  // private use
  return std::nullopt;
}

}  // namespace

CharTable::CharTable() {
  std::map<std::array<uint16_t, 128>, uint16_t> known;
  for (size_t block = 0; block < index_.size(); ++block) {
    const char32_t start = static_cast<char32_t>(block << 7);
    std::array<uint16_t, 128> flags{};
    if (const std::optional<uint16_t> uniform = uniform_flags(start)) {
      flags.fill(*uniform);
    } else {
      for (char32_t i = 0; i < 128; ++i) flags[i] = compute_flags(start + i);
    }
    const auto [it, fresh] = known.try_emplace(flags, static_cast<uint16_t>(known.size()));
    if (fresh) flags_.insert(flags_.end(), flags.begin(), flags.end());
    index_[block] = it->second;
  }
}

const CharTable& CharTable::get() {
  static const CharTable table;
  return table;
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
    } else {
      next_code_point(text, pos);
    }
  }
  return count;
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    UChar32 c;
    U8_NEXT(text.data(), pos, text.size(), c);
    if (c < 0) return start;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) append_utf8(result, next_code_point(text, pos));
  return result;
}

size_t complete_utf8_length(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t lead = text.size() - back;
    const uint8_t byte = static_cast<uint8_t>(text[lead]);
    if (U8_IS_TRAIL(byte)) continue;
    if (static_cast<size_t>(U8_COUNT_TRAIL_BYTES(byte)) < back) break;
    // Ill-formed because it ends too soon, or sooner than that.
    size_t pos = lead;
    next_code_point(text, pos);
    return pos == text.size() ? lead : text.size();
  }
  return text.size();
}

size_t decompose(char32_t c, CodePoints& out) { return decompose_by(nfd(), c, out); }

size_t decompose_compatibly(char32_t c, LongCodePoints& out) {
  out[0] = c;
  return age(c) <= kDecompositionVersion ? decompose_by(nfkd(), c, out) : 1;
}

char32_t compose(char32_t first, char32_t second) {
  const UChar32 both =
      unorm2_composePair(nfc(), static_cast<UChar32>(first), static_cast<UChar32>(second));
  return both >= 0 && age(static_cast<char32_t>(both)) <= kDecompositionVersion
             ? static_cast<char32_t>(both)
             : 0;
}

size_t to_lower_case(char32_t c, CodePoints& out) {
  if (c == 0x130) {  // the only character whose lower case is two
    out[0] = 'i', out[1] = 0x307;
    return 2;
  }
  for (const LowerRange& range : kNewLower) {
    if (c >= range.first && c <= range.last && (c - range.first) % range.step == 0) {
      out[0] = range.lower + (c - range.first);
      return 1;
    }
  }
  out[0] = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
  return 1;
}

uint8_t combining_class(char32_t c) { return u_getCombiningClass(static_cast<UChar32>(c)); }

bool is_word_char(char32_t c) {
  const UChar32 u = static_cast<UChar32>(c);
  constexpr uint32_t kMask = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_isUAlphabetic(u) || is_new_letter(c) || (U_MASK(u_charType(u)) & kMask) ||
         u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL);
}

}  // namespace snug

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

constexpr int kCategoriesVersion = 8, kDecompositionVersion = 9;

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

const UNormalizer2* nfd() {
  static const UNormalizer2* const instance = [] {
    UErrorCode status = U_ZERO_ERROR;
    const UNormalizer2* normalizer = unorm2_getNFDInstance(&status);
    SNUG_CHECK(U_SUCCESS(status));
    return normalizer;
  }();
  return instance;
}

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

uint8_t category_flags(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return 0;
  const int type = category(c);
  uint8_t flags = 0;
  if (U_MASK(type) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) flags |= kCharDropped;
  if ((U_MASK(type) & U_GC_P_MASK) || is_ascii_punct(c)) flags |= kCharPunct;
  if (type == U_NON_SPACING_MARK) flags |= kCharMark;
  return flags;
}

uint8_t compute_flags(char32_t c) {
  const UChar32 u = static_cast<UChar32>(c);
  uint8_t flags = category_flags(c);
  if (c == 0xFFFD) flags |= kCharDropped;
  if (u_isUWhiteSpace(u)) flags |= kCharSpace;
  for (const Range& range : kCjk) {
    if (c >= range.first && c <= range.last) flags |= kCharCjk;
  }
  CodePoints out;
  if (to_lower_case(c, out) != 1 || out[0] != c) flags |= kCharUpper;
  if (c < 0xC0 || age(c) > kDecompositionVersion) return flags;
  if (u_getCombiningClass(u) != 0) flags |= kCharNonStarter;
  UChar units[16];
  UErrorCode status = U_ZERO_ERROR;
  if (unorm2_getRawDecomposition(nfd(), u, units, 16, &status) >= 0) flags |= kCharDecomposes;
  return flags;
}

// The one answer for a whole block of 128, where there is one: building the table then does not ask
// ICU about each of a million code points. The last block of a plane holds noncharacters, so it is
// never uniform.
std::optional<uint8_t> uniform_flags(char32_t start) {
  const auto within = [start](char32_t first, char32_t end) {
    return start >= first && start < end;
  };
  if ((start & 0xFFFF) == 0xFF80) return std::nullopt;
  if (within(0xAC00, 0xD780)) return kCharDecomposes;  // Hangul syllables
  if (within(0x3400, 0x4D80) || within(0x4E00, 0x9F80) || within(0x20000, 0x2A680)) return kCharCjk;
  if (within(0x32000, 0xE0000) || within(0xE1000, 0xF0000)) return uint8_t{0};
  if (start >= 0xF0000) return kCharDropped;  // private use
  return std::nullopt;
}

}  // namespace

CharTable::CharTable() {
  std::map<std::array<uint8_t, 128>, uint16_t> known;
  for (size_t block = 0; block < index_.size(); ++block) {
    const char32_t start = static_cast<char32_t>(block << 7);
    std::array<uint8_t, 128> flags{};
    if (const std::optional<uint8_t> uniform = uniform_flags(start)) {
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

size_t decompose(char32_t c, CodePoints& out) {
  UChar units[32];
  UErrorCode status = U_ZERO_ERROR;
  const int32_t length =
      unorm2_getDecomposition(nfd(), static_cast<UChar32>(c), units, 32, &status);
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

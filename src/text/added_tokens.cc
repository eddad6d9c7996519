#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "core/error.h"
#include "text/unicode.h"

namespace snug {
namespace {

char32_t code_point_before(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && end - start < 4 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  char32_t c = 0xFFFD;
  while (start < end) c = next_code_point(text.substr(0, end), start);
  return c;
}

bool is_space(char32_t c) { return CharTable::get()[c] & kCharSpace; }

size_t skip_spaces_back(std::string_view text, size_t end, size_t stop) {
  while (end > stop) {
    const char32_t c = code_point_before(text, end);
    if (!is_space(c)) break;
    end -= U8_LENGTH(c);
  }
  return end;
}

size_t skip_spaces(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if (!is_space(next_code_point(text, next))) break;
    pos = next;
  }
  return pos;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word_char(code_point_before(text, begin))) return false;
  return end == text.size() || !is_word_char(next_code_point(text, end));
}

}  // namespace

int32_t check_added_tokens(const std::vector<AddedToken>& added, const Vocabulary& vocabulary,
                           std::string_view origin) {
  int32_t next = vocabulary.size();
  std::unordered_set<std::string_view> seen;
  for (const AddedToken& token : added) {
    if (!seen.insert(token.content).second) {
      fail(ErrorKind::kInput, "{}: added token \"{}\" occurs twice", origin, token.content);
    }
    const int32_t known = vocabulary.find(token.content);
    const int32_t expected = known >= 0 ? known : next++;
    if (token.content.empty()) {
      fail(ErrorKind::kInput, "{}: added token {} is empty", origin, token.id);
    }
    if (token.id != expected) {
      fail(ErrorKind::kInput, "{}: added token \"{}\" has id {}, expected {} ({})", origin,
           token.content, token.id, expected,
           known >= 0 ? "its id in the vocabulary" : "the next free id");
    }
  }
  return next;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens,
                                     const std::vector<std::string>& contents) {
  std::unordered_set<std::string_view> seen;
  std::vector<std::string> kept;
  for (size_t i = tokens.size(); i-- > 0;) {
    if (contents[i].empty() || !seen.insert(contents[i]).second) continue;
    kept.push_back(contents[i]);
    tokens_.push_back(std::move(tokens[i]));
  }
  contents_ = Vocabulary(kept);
  lead_ = contents_.make_lead("");
  const auto starts = [](uint32_t longest) { return longest > 0; };
  if (std::count_if(lead_.longest.begin(), lead_.longest.end(), starts) == 1) {
    only_first_byte_ =
        std::find_if(lead_.longest.begin(), lead_.longest.end(), starts) - lead_.longest.begin();
  }
}

size_t AddedTokenMatcher::find_candidate(std::string_view text, size_t from) const {
  if (from >= text.size()) return text.size();
  if (only_first_byte_ >= 0) {
    const void* hit = std::memchr(text.data() + from, only_first_byte_, text.size() - from);
    return hit ? static_cast<const char*>(hit) - text.data() : text.size();
  }
  while (from < text.size() && lead_.longest[static_cast<uint8_t>(text[from])] == 0) ++from;
  return from;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Search::next() {
  if (matcher_.empty()) return std::nullopt;
  while (true) {
    const size_t begin = matcher_.find_candidate(text_, pos_);
    if (begin >= text_.size()) return std::nullopt;
    const auto found =
        matcher_.contents_.longest_match(matcher_.lead_, text_.substr(begin), hashes_);
    pos_ = begin + std::max<size_t>(found.bytes, 1);
    if (found.id < 0) continue;

    const AddedToken& token = matcher_.tokens_[found.id];
    Match match{begin, begin + found.bytes, token.id};
    if (token.single_word && !stands_alone(text_, match.begin, match.end)) continue;
    // A token that itself begins with a space may find it taken by the one before.
    if (token.lstrip) {
      match.begin = std::max(skip_spaces_back(text_, match.begin, consumed_), consumed_);
    }
    if (token.rstrip) match.end = skip_spaces(text_, match.end);
    match.stripped = match.begin != begin || match.end != begin + found.bytes;
    consumed_ = match.end;
    return match;
  }
}

}  // namespace snug

// Tokens that are recognised in the text before it is split into words: "[SEP]" typed by a user is
// the separator. Which of two overlapping ones wins, and how they take up neighbouring spaces,
// follows the reference to the letter.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace snug {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only between characters that are not \w
  bool lstrip = false;       // takes up the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // searched in the normalised text instead of the raw one
  bool special = false;
  bool operator==(const AddedToken&) const = default;
};

// Added tokens beyond the vocabulary must continue its ids, as the reference assigns them (kInput).
// Returns the number of ids that they and the vocabulary make together.
int32_t check_added_tokens(const std::vector<AddedToken>& added, const Vocabulary& vocabulary,
                           std::string_view origin);

class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin = 0, end = 0;
    int32_t id = -1;
    bool stripped = false;  // not exactly the token, because of lstrip or rstrip
  };

  // Walks over the matches of one text, from left to right; `text` must outlive it.
  class Search {
   public:
    Search(const AddedTokenMatcher& matcher, std::string_view text)
        : matcher_(matcher), text_(text) {}
    std::optional<Match> next();

   private:
    const AddedTokenMatcher& matcher_;
    std::string_view text_;
    size_t pos_ = 0;       // where to look next
    size_t consumed_ = 0;  // end of the last match with the spaces it took
    Vocabulary::Hashes hashes_;
  };

  AddedTokenMatcher() = default;
  // `contents[i]` is what `tokens[i]` looks like in the text searched; of equal ones the last
  // counts, empty ones never match.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);

  bool empty() const { return tokens_.empty(); }

 private:
  size_t find_candidate(std::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;  // same order as contents_
  Vocabulary contents_;
  Vocabulary::Lead lead_;
  int only_first_byte_ = -1;  // when all begin with the same byte, memchr finds the candidates
};

}  // namespace snug

// How many tokens of one or two texts remain, and where windows begin. Pure arithmetic, shared by
// every tokenizer family; the odd token of two long texts goes to the longer one, and to the second
// when they are equal, as in the reference.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "text/tokenizer.h"

namespace snug {

struct TextLengths {
  size_t first = 0;
  std::optional<size_t> second;

  size_t total() const { return first + second.value_or(0); }
  bool operator==(const TextLengths&) const = default;
};

// The lengths that remain when `room` tokens may. Errors, where something must go: kOnlySecond
// without a second text (kUsage); the text to be shortened would vanish (kInput).
TextLengths truncate(const TextLengths& lengths, size_t room, Truncation truncation);

struct TokenRange {
  size_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

// Overlapping windows of `window` tokens over `length`, each sharing `stride` with the one before;
// at least one.
std::vector<TokenRange> window_ranges(size_t length, size_t window, size_t stride);

}  // namespace snug

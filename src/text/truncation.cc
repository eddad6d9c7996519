#include "text/truncation.h"

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

TextLengths truncate_longest_first(const TextLengths& lengths, size_t room) {
  if (!lengths.second) return {std::min(lengths.first, room), std::nullopt};
  size_t shorter = std::min(lengths.first, *lengths.second);
  size_t longer = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = room - shorter;
  }
  if (lengths.first > *lengths.second) return {longer, shorter};
  return {shorter, longer};
}

size_t truncate_one(size_t other, size_t room, const char* name) {
  if (other >= room) {
    fail(ErrorKind::kInput,
         "max_length leaves {} tokens for both texts and the other one alone fills them: the {} "
         "text cannot be shortened to "
         "nothing",
         room, name);
  }
  return room - other;
}

}  // namespace

TextLengths truncate(const TextLengths& lengths, size_t room, Truncation truncation) {
  if (truncation == Truncation::kNone || lengths.total() <= room) return lengths;
  if (room == 0) return {0, lengths.second ? std::optional<size_t>(0) : std::nullopt};
  if (truncation == Truncation::kOnlySecond && !lengths.second) {
    fail(ErrorKind::kUsage, "truncation only_second cannot shorten a text without a second one");
  }
  switch (truncation) {
    case Truncation::kOnlyFirst:
      return {truncate_one(lengths.second.value_or(0), room, "first"), lengths.second};
    case Truncation::kOnlySecond:
      return {lengths.first, truncate_one(lengths.first, room, "second")};
    default:
      return truncate_longest_first(lengths, room);
  }
}

std::vector<TokenRange> window_ranges(size_t length, size_t window, size_t stride) {
  if (length <= window) return {{0, length}};
  SNUG_CHECK(stride < window);
  std::vector<TokenRange> ranges;
  for (size_t begin = 0;; begin += window - stride) {
    ranges.push_back({begin, std::min(begin + window, length)});
    if (ranges.back().end == length) return ranges;
  }
}

}  // namespace snug

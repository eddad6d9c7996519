// Where a long text may be cut so that its halves can be looked at one after the other.
#pragma once

#include <string_view>

namespace snug {

// The next single space, from `from` > 0 on, between two ASCII letters or digits, or the end: no
// normalisation rule of a tokenizer sees beyond it.
size_t find_plain_space(std::string_view text, size_t from);

}  // namespace snug

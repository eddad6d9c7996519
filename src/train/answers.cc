#include "train/answers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "text/unicode.h"

namespace snug {
namespace {

constexpr size_t kCandidates = 20;  // first and last tokens of each window that are looked at

struct Candidate {
  double score;
  Span span;
};

// The tokens with the highest scores in column `column` of [tokens, 2].
std::vector<size_t> highest(std::span<const float> scores, size_t column) {
  std::vector<size_t> order(scores.size() / 2);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto better = [&](size_t a, size_t b) {
    const float x = scores[2 * a + column], y = scores[2 * b + column];
    return x != y ? x > y : a < b;
  };
  const size_t count = std::min(order.size(), kCandidates);
  std::partial_sort(order.begin(), order.begin() + ptrdiff_t(count), order.end(), better);
  order.resize(count);
  return order;
}

std::string_view part_of(std::string_view text, const Span& span) {
  size_t begin = 0, point = 0;
  while (point < span.begin && begin < text.size()) next_code_point(text, begin), ++point;
  size_t end = begin;
  while (point < span.end && end < text.size()) next_code_point(text, end), ++point;
  return text.substr(begin, end - begin);
}

}  // namespace

FoundAnswers find_answers(const OwnedRow& row, std::span<const ScoredExample> windows, size_t most,
                          size_t longest) {
  std::vector<Candidate> candidates;
  double none = std::numeric_limits<double>::infinity();
  for (const ScoredExample& window : windows) {
    const std::span<const float> scores = window.result;
    const Encoding& encoding = window.example.encoding;
    none = std::min(none, double(scores[0]) + scores[1]);  // the first token stands for it
    const std::vector<size_t> firsts = highest(scores, 0), lasts = highest(scores, 1);
    for (const size_t first : firsts) {
      for (const size_t last : lasts) {
        const bool inside = first >= encoding.second_begin && last < encoding.second_end;
        if (!inside || last < first || last - first + 1 > longest) continue;
        candidates.push_back({double(scores[2 * first]) + scores[2 * last + 1],
                              {encoding.offsets[first].begin, encoding.offsets[last].end}});
      }
    }
  }
  std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::score);
  // Windows overlap: an answer that two of them found counts once.
  std::vector<Candidate> kept;
  for (const Candidate& candidate : candidates) {
    if (kept.size() == std::max<size_t>(most, 1)) break;
    if (std::ranges::find(kept, candidate.span, &Candidate::span) == kept.end()) {
      kept.push_back(candidate);
    }
  }
  FoundAnswers found;
  if (kept.empty()) return found;
  found.no_answer_score = none - kept[0].score;
  double sum = 0;
  for (const Candidate& candidate : kept) sum += std::exp(candidate.score - kept[0].score);
  for (const Candidate& candidate : kept) {
    found.best.push_back({.text = std::string(part_of(row.text_pair.value_or(""), candidate.span)),
                          .begin = candidate.span.begin,
                          .end = candidate.span.end,
                          .score = std::exp(candidate.score - kept[0].score) / sum});
  }
  return found;
}

}  // namespace snug

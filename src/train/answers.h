// From scores of first and last tokens to answers: what the reference scripts for SQuAD do, over
// all windows of a context.
#pragma once

#include <string>
#include <vector>

#include "snug/snug.h"
#include "train/text_runner.h"

namespace snug {

struct FoundAnswers {
  std::vector<AnswerPrediction> best;  // that are not empty, best first; never more than asked for
  double no_answer_score = 0;          // how much higher no answer scores than the best one
};

// `most` answers of at most `longest` tokens each.
FoundAnswers find_answers(const OwnedRow& row, std::span<const ScoredExample> windows, size_t most,
                          size_t longest);

}  // namespace snug

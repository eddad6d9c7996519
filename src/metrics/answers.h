// Answers in words against the answers that people gave, exactly as SQuAD's official scripts
// compare them, and their totals.
#pragma once

#include <filesystem>

#include "metrics/external_sort.h"
#include "metrics/metrics.h"

namespace snug {

// Lower case, without ASCII punctuation and articles, words apart by one space; characters as
// Python classes them.
std::string normalize_answer(std::string_view text);

// 2.0 has questions without an answer: no gold answers, to which an empty prediction is right.
enum class SquadVersion { k1, k2 };

struct AnswerScore {
  double exact = 0, f1 = 0;  // 0 to 1, each by the gold answer that suits it best
};
AnswerScore score_answer(std::span<const std::string> gold, std::string_view prediction,
                         SquadVersion version);

class AnswerMetrics : public Metrics {
 public:
  // A question of version 2 whose no-answer score is above the threshold counts as answered by
  // nothing.
  AnswerMetrics(SquadVersion version, std::filesystem::path scratch,
                double no_answer_threshold = 0);
  static uint64_t bytes() { return kSortBytes; }

  // Version 2: the prediction is the best answer that is none, or empty; no_answer_score says how
  // much better no answer is.
  void add(std::span<const std::string> gold, std::string_view prediction,
           double no_answer_score = 0);

  void reset() override;
  uint64_t examples() const override { return totals_[0].questions + totals_[1].questions; }
  // In percent, by the names of the scripts. Version 1: exact_match, f1. Version 2: exact, f1,
  // total; these with HasAns_ and NoAns_ where there are such questions; best_exact, best_f1 and
  // their thresholds best_exact_thresh, best_f1_thresh.
  MetricValues all() override;
  std::vector<std::string> sometimes() const override;

 private:
  struct Question {
    double no_answer_score, f1;
    uint64_t number;  // among equal scores the order of the data counts
    uint32_t exact;
    bool has_answer, is_answered;

    bool operator<(const Question& other) const {
      return no_answer_score != other.no_answer_score ? no_answer_score < other.no_answer_score
                                                      : number < other.number;
    }
  };
  struct Totals {
    uint64_t questions = 0;
    double exact = 0, f1 = 0;
  };

  void put_best(MetricValues& values);

  SquadVersion version_;
  double threshold_;
  Totals totals_[2];                  // of questions without and with an answer
  ExternalSort<Question> questions_;  // version 2
};

}  // namespace snug

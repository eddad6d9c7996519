// Entities of a tagger against those of the data, as seqeval counts them: right where type, first
// and last word are.
#pragma once

#include "metrics/score_rows.h"
#include "metrics/tag_set.h"

namespace snug {

class EntityMetrics : public Metrics {
 public:
  EntityMetrics(std::span<const std::string> labels, TagScheme scheme);

  // The tags of one sequence, word by word.
  void add(std::span<const int32_t> expected, std::span<const int32_t> predicted);

  void reset() override;
  uint64_t examples() const override { return sequences_; }
  // precision, recall, f1 (micro); these with _micro, _macro, _weighted, over the types that occur;
  // accuracy of tags.
  MetricValues all() override;
  ScoreReport report() const override;

 private:
  std::vector<ScoreRow> rows() const;

  TagSet tags_;
  uint64_t sequences_ = 0, words_ = 0, correct_ = 0;
  std::vector<Counts> counts_;  // by type
  std::vector<Entity> expected_, predicted_;
};

}  // namespace snug

// A packed micro-batch built sequence by sequence, for whoever has token ids at hand: prediction,
// benchmarks, tests. The stream that feeds training packs whole steps instead (batches.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/op.h"

namespace snug {

class BatchBuilder {
 public:
  BatchBuilder() = default;
  explicit BatchBuilder(const Dims& capacity);  // takes all its memory now
  static uint64_t bytes(const Dims& capacity);  // how much that is

  // Empty `type_ids` are all zero. `labels`: the capacity's label_words. `sample` names the
  // sequence's dropout masks; without it, its place does.
  void add(std::span<const int32_t> ids, std::span<const int32_t> type_ids,
           std::span<const int32_t> labels, std::optional<uint64_t> sample = std::nullopt);
  void add(std::span<const int32_t> ids, std::span<const int32_t> type_ids, int32_t label,
           std::optional<uint64_t> sample = std::nullopt) {
    add(ids, type_ids, std::span(&label, 1), sample);
  }
  // More of a text that is being generated: tokens from `first_position` on, of which the last
  // predicts.
  struct Text {
    uint64_t place = 0;  // in the cache
    int32_t number = 0;  // of all texts
  };
  void add_to_text(std::span<const int32_t> ids, int32_t first_position, const Text& text);
  // Of the sequence added last: these tokens predict these ids; or every token the one behind it.
  void predict(std::span<const int32_t> tokens, std::span<const int32_t> ids);
  void predict_next_tokens();
  void clear();

  bool empty() const { return samples_.empty(); }
  Dims dims() const {
    return {int64_t(ids_.size()), int64_t(samples_.size()), longest_, int64_t(target_rows_.size()),
            label_words_};
  }
  Batch view() const;  // valid until the next add() or clear()

 private:
  std::vector<int32_t> ids_, positions_, type_ids_, row_of_, starts_ = {0}, labels_, target_rows_,
                                                             target_ids_;
  std::vector<uint64_t> samples_;
  int64_t longest_ = 0, label_words_ = 1;
};

}  // namespace snug

#include "data/batch_builder.h"

#include <algorithm>

#include "core/error.h"

namespace snug {

BatchBuilder::BatchBuilder(const Dims& capacity) : label_words_(capacity.label_words) {
  for (auto* list : {&ids_, &positions_, &type_ids_, &row_of_}) {
    list->reserve(size_t(capacity.tokens));
  }
  starts_.reserve(size_t(capacity.sequences) + 1);
  labels_.reserve(size_t(capacity.sequences * capacity.label_words));
  samples_.reserve(size_t(capacity.sequences));
  for (auto* list : {&target_rows_, &target_ids_}) list->reserve(size_t(capacity.targets));
}

uint64_t BatchBuilder::bytes(const Dims& capacity) {
  return uint64_t(capacity.tokens) * 4 * sizeof(int32_t) +
         uint64_t(capacity.sequences + 1) *
             ((1 + size_t(capacity.label_words)) * sizeof(int32_t) + sizeof(uint64_t)) +
         uint64_t(capacity.targets) * 2 * sizeof(int32_t);
}

void BatchBuilder::add(std::span<const int32_t> ids, std::span<const int32_t> type_ids,
                       std::span<const int32_t> labels, std::optional<uint64_t> sample) {
  SNUG_CHECK(int64_t(labels.size()) == label_words_);
  const auto row = int32_t(samples_.size());
  for (size_t t = 0; t < ids.size(); ++t) {
    ids_.push_back(ids[t]);
    type_ids_.push_back(type_ids.empty() ? 0 : type_ids[t]);
    positions_.push_back(int32_t(t));
    row_of_.push_back(row);
  }
  starts_.push_back(int32_t(ids_.size()));
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  samples_.push_back(sample.value_or(uint64_t(row)));
  longest_ = std::max(longest_, int64_t(ids.size()));
}

void BatchBuilder::add_to_text(std::span<const int32_t> ids, int32_t first_position,
                               const Text& text) {
  const size_t begin = ids_.size();
  add(ids, {}, text.number, text.place);
  for (size_t t = begin; t < ids_.size(); ++t) positions_[t] += first_position;
  longest_ = std::max(longest_, first_position + int64_t(ids.size()));
  target_rows_.push_back(int32_t(ids_.size()) - 1);
  target_ids_.push_back(-1);
}

void BatchBuilder::predict(std::span<const int32_t> tokens, std::span<const int32_t> ids) {
  for (const int32_t token : tokens) target_rows_.push_back(starts_[starts_.size() - 2] + token);
  target_ids_.insert(target_ids_.end(), ids.begin(), ids.end());
}

void BatchBuilder::predict_next_tokens() {
  for (int32_t t = starts_[starts_.size() - 2]; t + 1 < starts_.back(); ++t) {
    target_rows_.push_back(t);
    target_ids_.push_back(ids_[size_t(t) + 1]);
  }
}

void BatchBuilder::clear() {
  for (auto* list :
       {&ids_, &positions_, &type_ids_, &row_of_, &labels_, &target_rows_, &target_ids_}) {
    list->clear();
  }
  samples_.clear();
  starts_.assign(1, 0);
  longest_ = 0;
}

Batch BatchBuilder::view() const {
  return {.dims = dims(),
          .ids = ids_.data(),
          .positions = positions_.data(),
          .type_ids = type_ids_.data(),
          .row_of = row_of_.data(),
          .starts = starts_.data(),
          .labels = labels_.data(),
          .samples = samples_.data(),
          .target_rows = target_rows_.data(),
          .target_ids = target_ids_.data(),
          .by_id = nullptr};
}

}  // namespace snug

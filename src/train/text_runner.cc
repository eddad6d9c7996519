#include "train/text_runner.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/error.h"
#include "data/row_stream.h"

namespace snug {
namespace {

EncodingOptions reading_empty_texts(EncodingOptions options) {
  options.empty_is_end = true;
  return options;
}

}  // namespace

OwnedRow::OwnedRow(const Row& row, RowLabels labelled)
    : text(row.text), id(row.id), labels(std::move(labelled)) {
  if (row.text_pair) text_pair = *row.text_pair;
  for (const Answer& answer : row.answers) answers.emplace_back(answer.text);
}

LabelledRow OwnedRow::view() const {
  LabelledRow view{
      .text = text, .labels = labels.labels, .words = labels.words, .answer = labels.answer};
  if (text_pair) view.text_pair = *text_pair;
  return view;
}

TextRunner::TextRunner(Engine& engine, const Plan& plan, const Tokenizer& tokenizer,
                       const EncodingOptions& options, OnRow on_row)
    : engine_(engine),
      capacity_(plan.capacity),
      labelling_(options.labelling),
      encoder_(tokenizer, reading_empty_texts(options)),
      on_row_(std::move(on_row)),
      batch_(plan.capacity) {}

uint64_t TextRunner::bytes(const Dims& capacity, const EncodingOptions& options,
                           uint64_t longest_text_bytes) {
  // The text itself and what the tokenizer makes of it; all its windows, which are there at once:
  // 15 times the text, measured with five bytes a token.
  const uint64_t times = options.long_texts == LongTexts::kWindows ? 24 : 3;
  return BatchBuilder::bytes(capacity) +
         (longest_text_bytes > kUsualTextBytes ? longest_text_bytes * times : 0);
}

uint64_t TextRunner::record_room(const Plan& plan, const EncodingOptions& options,
                                 const std::filesystem::path& file) {
  if (plan.device.kind != DeviceKind::kCpu) {
    return std::numeric_limits<uint64_t>::max();  // texts are not where the budget is
  }
  const auto bytes_for = [&](uint64_t record) {
    return reading_bytes(file, record) + bytes(plan.capacity, options, record);
  };
  constexpr uint64_t kMany = 2 * kUsualTextBytes;
  const uint64_t times = (bytes_for(kMany) - bytes_for(0)) / kMany;
  return std::max((plan.budget_bytes - plan.peak_bytes) / times, kUsualTextBytes);
}

uint64_t TextRunner::word_room(const Plan& plan) {
  if (plan.device.kind != DeviceKind::kCpu) return EncodeOptions().word_room;
  return std::max(plan.budget_bytes - plan.peak_bytes, kUsualWordRoom);
}

void TextRunner::add(OwnedRow row) {
  const std::span<EncodedExample> examples = encoder_.encode(row.view());
  add(std::move(row), examples);
}

void TextRunner::add(const std::string& file, const Row& row, RowLabels labels) {
  OwnedRow owned(row, std::move(labels));
  std::span<EncodedExample> examples;
  try {
    examples = encoder_.encode(owned.view());
  } catch (const Error& error) {
    if (!is_of_row(error)) throw;
    throw with_place(error, file, row);
  }
  add(std::move(owned), examples);
}

void TextRunner::add(OwnedRow row, std::span<EncodedExample> examples) {
  waiting_.push_back({.row = std::move(row), .windows = {}});
  Waiting& added = waiting_.back();  // stays where it is until its last window is scored
  added.windows.reserve(examples.size());
  for (EncodedExample& example : examples) added.windows.push_back({std::move(example), {}});
  long_rows_ += encoder_.was_long();
  ++rows_;
  for (const ScoredExample& window : added.windows) add(window.example);
}

void TextRunner::add(const EncodedExample& example) {
  const Dims so_far = batch_.dims();
  const std::vector<int32_t>& ids = example.encoding.ids;
  SNUG_CHECK(int64_t(ids.size()) <= capacity_.longest);
  if (so_far.tokens + int64_t(ids.size()) > capacity_.tokens ||
      so_far.sequences == capacity_.sequences) {
    score();
  }
  set_label_words(example.labels);
  batch_.add(ids, example.encoding.type_ids, label_words_);
  if (labelling_ != Labelling::kTags) {
    targets_ += 1;
    return;
  }
  target_rows_.clear();
  target_ids_.clear();
  for (size_t t = 0; t < ids.size(); ++t) {
    if (example.words[t] < 0) continue;
    target_rows_.push_back(int32_t(t));
    target_ids_.push_back(example.tags[t]);
    targets_ += example.tags[t] >= 0;
  }
  batch_.predict(target_rows_, target_ids_);
}

// As a batch has them.
void TextRunner::set_label_words(std::span<const int32_t> labels) {
  label_words_.assign(size_t(capacity_.label_words), labelling_ == Labelling::kClasses ? 0 : -1);
  if (labelling_ == Labelling::kClasses) {
    for (const int32_t label : labels) {
      label_words_[size_t(label) / 32] |= int32_t(1u << label % 32);
    }
  } else {
    SNUG_CHECK(labels.size() <= label_words_.size());
    std::ranges::copy(labels, label_words_.begin());
  }
  // Where classes have weights in training, here they all weigh the same.
  const bool may_have_weights = labelling_ == Labelling::kClass || labelling_ == Labelling::kTags;
  if (may_have_weights) {
    std::fill(label_words_.begin() + 1, label_words_.end(), std::bit_cast<int32_t>(1.0f));
  }
}

void TextRunner::finish() {
  score();
  SNUG_CHECK(waiting_.empty());
}

void TextRunner::score() {
  if (batch_.empty()) return;
  const Batch batch = batch_.view();
  engine_.score(batch);
  const std::span<const float> result = engine_.result();
  const auto columns = size_t(engine_.result_columns());
  size_t row = 0, target = 0;
  auto waiting = waiting_.begin();
  while (waiting->scored == waiting->windows.size()) ++waiting;
  for (int64_t sequence = 0; sequence < batch.dims.sequences; ++sequence) {
    while (waiting->scored == waiting->windows.size()) ++waiting;
    ScoredExample& window = waiting->windows[waiting->scored++];
    size_t rows = 1;
    if (labelling_ == Labelling::kAnswer) rows = window.example.encoding.ids.size();
    if (labelling_ == Labelling::kTags) {
      const size_t begin = target;
      while (target < size_t(batch.dims.targets) &&
             batch.row_of[batch.target_rows[target]] == sequence) {
        ++target;
      }
      rows = target - begin;
    }
    const auto part = result.subspan(row * columns, rows * columns);
    window.result.assign(part.begin(), part.end());
    row += rows;
  }
  batch_.clear();
  // A row is whole when its last window is scored.
  while (!waiting_.empty() && waiting_.front().scored == waiting_.front().windows.size()) {
    on_row_(waiting_.front().row, waiting_.front().windows);
    waiting_.pop_front();
  }
}

}  // namespace snug

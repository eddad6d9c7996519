// Texts on their way through a model: encoded, packed into micro-batches, scored, and handed back
// row by row in their order with what the model said about every window. Prediction, embedding,
// `snug eval` and the evaluations inside training all go this way. Nothing of the results is kept.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_builder.h"
#include "data/example_encoder.h"
#include "runtime/engine.h"

namespace snug {

// A row and everything it refers to.
struct OwnedRow {
  OwnedRow() = default;
  OwnedRow(const Row& row, RowLabels labelled);
  LabelledRow view() const;

  std::string text, id;
  std::optional<std::string> text_pair;
  std::vector<std::string> answers;  // in words
  RowLabels labels;
};

// A window of a row, and its rows of the graph's result: one for the whole text, or one for each
// word that is looked at in it, or one for each of its tokens.
struct ScoredExample {
  EncodedExample example;
  std::vector<float> result;
};

class TextRunner {
 public:
  using OnRow = std::function<void(const OwnedRow& row, std::span<const ScoredExample> windows)>;

  // All must outlive the runner.
  TextRunner(Engine& engine, const Plan& plan, const Tokenizer& tokenizer,
             const EncodingOptions& options, OnRow on_row);
  // What it takes at most, where the longest text has so many bytes; up to kUsualTextBytes make no
  // difference.
  static uint64_t bytes(const Dims& capacity, const EncodingOptions& options,
                        uint64_t longest_text_bytes);
  // The longest record of a file that a plan, which has counted none above kUsualTextBytes, leaves
  // room for.
  static uint64_t record_room(const Plan& plan, const EncodingOptions& options,
                              const std::filesystem::path& file);
  // What it leaves for a word, see EncodeOptions.
  static uint64_t word_room(const Plan& plan);

  void add(OwnedRow row);
  // A row of a file. What is wrong with it (kInput) is said with its place, and it is left out.
  void add(const std::string& file, const Row& row, RowLabels labels);
  void finish();  // what has not been scored yet

  uint64_t rows() const { return rows_; }
  uint64_t long_rows() const { return long_rows_; }
  uint64_t targets() const { return targets_; }  // that have a label: what the loss is the sum over

 private:
  struct Waiting {
    OwnedRow row;
    std::vector<ScoredExample> windows;
    size_t scored = 0;
  };

  void add(OwnedRow row, std::span<EncodedExample> examples);
  void add(const EncodedExample& example);
  void set_label_words(std::span<const int32_t> labels);
  void score();

  Engine& engine_;
  const Dims capacity_;
  const Labelling labelling_;
  ExampleEncoder encoder_;
  OnRow on_row_;
  BatchBuilder batch_;
  std::vector<int32_t> label_words_, target_rows_, target_ids_;
  std::deque<Waiting> waiting_;  // oldest first
  uint64_t rows_ = 0, long_rows_ = 0, targets_ = 0;
};

}  // namespace snug

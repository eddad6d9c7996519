// Data files as token ids on disk. The first use reads and tokenizes a file once, with progress,
// into a cache file; after that any row is found there (row_window.h), so shuffled epochs need
// neither the text nor an index in memory. The cache is named by everything that decides its
// contents except the source's contents, whose size, time and hash it carries: it is rebuilt when
// those change. Several files are one dataset over several caches: adding a file leaves the others'
// alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/example_encoder.h"
#include "data/labels.h"
#include "data/row_reader.h"
#include "text/tokenizer.h"

namespace snug {

// Language modelling: rows are not classified but read on.
struct DocumentOptions {
  // Documents end to end, each followed by the separator, cut into rows of max_length tokens; no
  // token is lost, and only the last row is shorter. Otherwise every document is a row of its own.
  bool joined = true;
  int32_t separator = -1;  // a token id; -1: none
  // Whether a row may be read as one text where it holds several documents.
  bool attention_crosses = false;
};

struct DatasetOptions {
  Columns columns{};
  LabelNeed labels = LabelNeed::kRequired;
  char label_separator = ',';  // of kClasses
  // When not null, labels must come from this set (validation data, or a model that already has a
  // head); a label outside it is an error naming value, line and the known set. When null, the set
  // is collected from the file.
  const LabelSet* known_labels = nullptr;
  EncodingOptions encoding{};  // longer texts than its max_length are shortened or cut, and counted
  std::filesystem::path cache_folder{};
  // Tokenizing threads while the cache is built; the caller's own reads and writes.
  int threads = 1;
  bool has_header = true;
  bool skip_bad_rows = false;  // leave wrong rows out instead of failing; see skipped_rows()
  std::optional<DocumentOptions> documents{};  // labels and second texts are then ignored
};

struct Example {
  std::vector<int32_t> ids, type_ids;
  std::vector<int32_t> labels;  // label_words(), as a Batch has them
  std::vector<int32_t> tags;    // of every token, -1: none; empty where rows have no tags
  bool continues = false;       // the next row is another window of the same text
};

// Files that are drawn from in a stated share, however many rows they have.
struct MixturePart {
  size_t files = 1;   // of the dataset's, after those of the parts before
  double weight = 1;  // only the ratio to the others matters
};

// Rows [first, first + rows) of a dataset, of which an epoch draws this many examples.
struct EpochShare {
  uint64_t first = 0, rows = 0, draws = 0;
};

class Dataset {
 public:
  // Opens the caches for (files, tokenizer, options), building them first where they are missing,
  // stale or damaged. Problems with a file are kInput, with a cache kStorage. Once open, neither a
  // change of the sources nor a removal of the caches matters.
  static Dataset open(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                      const DatasetOptions& options);
  static Dataset open(const std::filesystem::path& file, const Tokenizer& tokenizer,
                      const DatasetOptions& options);
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;
  ~Dataset();

  uint64_t rows() const;                // at least 1; windows count
  uint64_t tokens() const;              // over all rows, after truncation
  uint64_t long_rows() const;           // of the sources: shortened, or cut into windows
  uint32_t longest() const;             // tokens of the longest row, after truncation
  uint64_t longest_text_bytes() const;  // of the sources
  uint64_t longest_word_bytes() const;  // of their texts above 4 KiB
  // A row of joined documents is as many sequences as it holds documents, or parts of them: it is
  // cut behind each separator.
  uint32_t most_sequences() const;  // of any row
  int32_t separator() const;        // -1: rows are not cut

  // Parts share the files. What they say of tokens() is an upper bound, of longest(),
  // longest_text_bytes(), longest_word_bytes(), labels and label_counts() that of the whole.
  Dataset part(uint64_t first, uint64_t count) const;
  Dataset first_texts(uint64_t most) const;  // windows of a text stay together
  // A share of the texts, spread evenly over the files, where exactly is up to the seed; and the
  // others.
  struct Split;
  Split split(double percentage, uint64_t seed) const;
  // The last texts of each file, a share of all rows together, and the others. No file is held out
  // whole; without a value where that leaves nothing.
  std::optional<Split> split_ends(double percentage) const;
  // An epoch draws from its parts by their weights: as many examples in all as there are rows, or
  // `most` where that is less; of each part the first rows alone, where they are enough.
  Dataset mixed(std::span<const MixturePart> parts, uint64_t most) const;

  Dataset unmixed() const;  // the same rows, all of them once in an epoch
  // What an epoch goes through; without mixing, all rows once.
  uint64_t epoch_examples() const;
  std::span<const EpochShare> shares() const;  // empty: without mixing

  const LabelSet& labels() const;
  const std::vector<uint64_t>& label_counts() const;
  Labelling labelling() const;
  uint32_t label_words() const;  // of an example
  // Of the contents: the files' hashes, tokenizer, options and what was chosen of them.
  uint64_t fingerprint() const;
  uint64_t source_hash() const;                 // of the files alone
  const std::filesystem::path& source() const;  // the first of
  std::vector<std::filesystem::path> sources() const;

  uint64_t skipped_rows() const;  // of the sources, because they were wrong
  std::vector<std::filesystem::path> skipped_lists() const;  // JSON lines; they may be gone

  // Where a row comes from: a place in sources(), and the row's number there, from 0, wrong rows
  // counted, modulo 2^32.
  struct Origin {
    size_t source = 0;
    uint32_t number = 0;
    bool continues = false;  // as in Example
  };
  Origin origin(uint64_t row) const;

 private:
  friend class RowWindow;  // reads rows
  struct Source;
  struct Files;
  // Rows of all files end to end, of which a dataset may be some.
  struct Range {
    uint64_t first = 0, count = 0;
    uint64_t before = 0;  // rows of the dataset in earlier ranges
  };
  Dataset(std::shared_ptr<const Files> files, std::vector<Range> ranges);
  uint64_t place_of(uint64_t row) const;  // in all files
  void add_range(uint64_t first, uint64_t count);
  void add_rows(const Dataset& other, uint64_t begin, uint64_t end);  // of the same files
  // The first row from there on that does not continue another.
  uint64_t text_begin(uint64_t row) const;
  bool has_windows() const;
  uint64_t rows_before_file(size_t file) const;  // of this dataset

  std::shared_ptr<const Files> files_;
  std::vector<Range> ranges_;
  std::vector<EpochShare> shares_;
};

struct Dataset::Split {
  Dataset kept, held_out;
};

// The lists of rows that these datasets (null: none) left out, together in one file; without any,
// an older one is removed.
void write_skipped_list(const std::filesystem::path& file,
                        const std::vector<const Dataset*>& datasets);

}  // namespace snug

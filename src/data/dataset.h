// A data file as token ids on disk. The first use reads and tokenizes the file once, with progress,
// into a cache file; after that any row is two small preads, so shuffled epochs need neither the
// text nor an index in memory. The cache is named by everything that decides its contents except
// the source's contents, whose size, time and hash it carries: it is rebuilt when those change.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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
  int threads =
      1;  // tokenizing threads while the cache is built; the caller's own reads and writes
  bool has_header = true;
  std::optional<DocumentOptions> documents{};  // labels and second texts are then ignored
};

struct Example {
  std::vector<int32_t> ids, type_ids;
  std::vector<int32_t> labels;  // label_words(), as a Batch has them
  std::vector<int32_t> tags;    // of every token, -1: none; empty where rows have no tags
  bool continues = false;       // the next row is another window of the same text
};

class Dataset {
 public:
  // Opens the cache for (file, tokenizer, options), building it first where it is missing, stale or
  // damaged. Problems with the file are kInput, with the cache kStorage. Once open, neither a
  // change of the source nor a removal of the cache matters.
  static Dataset open(const std::filesystem::path& file, const Tokenizer& tokenizer,
                      const DatasetOptions& options);
  Dataset(Dataset&&) noexcept;
  ~Dataset();

  uint64_t rows() const;    // at least 1; windows count
  uint64_t tokens() const;  // over all rows, after truncation
  uint64_t long_rows() const;  // of the source: shortened, or cut into windows
  uint32_t longest() const;  // tokens of the longest row, after truncation
  // A row of joined documents is as many sequences as it holds documents, or parts of them: it is
  // cut behind each separator.
  uint32_t most_sequences() const;  // of any row
  int32_t separator() const;        // -1: rows are not cut
  // The rows [first, first + count), sharing the file. tokens() is then an upper bound.
  Dataset part(uint64_t first, uint64_t count) const;
  const LabelSet& labels() const;
  const std::vector<uint64_t>& label_counts() const;  // of the whole file
  Labelling labelling() const;
  uint32_t label_words() const;  // of an example
  uint64_t fingerprint() const;  // of the contents: the file's hash, tokenizer and options
  uint64_t source_hash() const;  // of the file alone
  const std::filesystem::path& source() const;

  // Thread-safe. Replaces the contents of `out`, keeping its capacity: with vectors that have room
  // for longest() ids it allocates nothing. A row may have no tokens where labels are not required.
  void read(uint64_t row, Example& out) const;
  uint32_t length(uint64_t row) const;

  // Bytes of memory that opening a dataset keeps (label names come on top), and the most that
  // building a cache takes at any time beyond that, while records stay under 64 KiB. Longer ones
  // add, while they pass, up to 5 times their size, in JSON 20 times.
  static size_t resident_bytes();
  static size_t build_bytes(int threads);

 private:
  struct Impl;
  Dataset(std::shared_ptr<const Impl> impl, uint64_t first, uint64_t rows);
  std::shared_ptr<const Impl> impl_;
  uint64_t first_, rows_;
};

}  // namespace snug

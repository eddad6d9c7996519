// What a Dataset is made of: its files, their caches, and how a stored row becomes an example.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "data/cache_file.h"
#include "data/dataset.h"

namespace snug {

// One file, its cache and what its labels are called in the set of all files.
struct Dataset::Source {
  std::filesystem::path file, skipped_list;
  OpenCache cache;
  uint64_t first_row = 0;            // in all files
  std::vector<int32_t> final_ids{};  // [label by first appearance in this file]

  const CacheHeader& header() const { return cache.header; }
  Labelling labelling() const { return Labelling(header().labelling); }
  uint64_t records_bytes() const { return header().index_begin - sizeof(CacheHeader); }
  uint64_t most_record_bytes() const;

  // `row` counts from 0 in this file. What cannot be is refused (kStorage).
  [[noreturn]] void refuse(uint64_t row) const;
  void check_bounds(uint64_t row, uint64_t begin, uint64_t end) const;
  RecordHead head(uint64_t row) const;
  uint32_t length(uint64_t row, std::span<const char> record) const;  // ids
  void decode(uint64_t row, std::span<const char> record, uint32_t label_words, Example& out) const;

 private:
  struct Shape {
    RecordHead head;
    uint32_t labels = 0, length = 0;  // how many; ids
  };
  Shape shape(uint64_t row, std::span<const char> record) const;
  uint64_t token_bytes() const;
  uint64_t most_labels() const {
    return labelling() == Labelling::kClasses ? final_ids.size() : fixed_labels(labelling());
  }
};

struct Dataset::Files {
  std::vector<Source> sources;
  LabelSet labels;
  std::vector<uint64_t> label_counts;
  uint64_t rows = 0, tokens = 0, long_rows = 0, skipped_rows = 0, records_bytes = 0,
           longest_text_bytes = 0, longest_word_bytes = 0;
  uint32_t longest = 0, most_sequences = 1, label_words = 1;
  bool windows = false;  // some text is several rows

  explicit Files(std::vector<Source> opened);
  // `given`: all files have the same set, in an order of its own.
  void merge_labels(bool given);

  const CacheHeader& header() const { return sources[0].header(); }
  Labelling labelling() const { return sources[0].labelling(); }
  const Source& source_of(uint64_t place) const;
  uint64_t most_record_bytes() const;
};

}  // namespace snug

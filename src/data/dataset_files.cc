#include "data/dataset_files.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "core/error.h"

namespace snug {
namespace {

// Returns false where an id is outside the vocabulary.
template <class Stored>
bool widen(const char* stored, std::span<int32_t> ids, uint32_t vocab) {
  uint32_t highest = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    Stored id;
    std::memcpy(&id, stored + i * sizeof id, sizeof id);
    ids[i] = int32_t(id);
    highest = std::max(highest, uint32_t(id));
  }
  return ids.empty() || highest < vocab;
}

// Likewise where there is no such tag.
bool widen_tags(const char* stored, std::span<int32_t> tags, size_t known) {
  bool sound = true;
  for (size_t i = 0; i < tags.size(); ++i) {
    uint16_t tag;
    std::memcpy(&tag, stored + i * sizeof tag, sizeof tag);
    tags[i] = tag == kNoTag ? -1 : int32_t(tag);
    sound &= tag == kNoTag || tag < known;
  }
  return sound;
}

// From labels as they are stored to a batch's words; false where there is no such class.
bool finish_labels(Example& example, Labelling labelling, std::span<const int32_t> final_ids,
                   uint32_t words) {
  std::vector<int32_t>& labels = example.labels;
  switch (labelling) {
    case Labelling::kClass:
      if (labels[0] < -1 || labels[0] >= int64_t(final_ids.size())) return false;
      if (labels[0] >= 0) labels[0] = final_ids[size_t(labels[0])];
      return true;
    case Labelling::kClasses: {
      uint32_t bits[kMostClassWords] = {};
      for (const int32_t id : labels) {
        if (id < 0 || id >= int64_t(final_ids.size())) return false;
        const auto bit = uint32_t(final_ids[size_t(id)]);
        bits[bit / 32] |= 1u << bit % 32;
      }
      labels.resize(words);
      std::memcpy(labels.data(), bits, words * sizeof(int32_t));
      return true;
    }
    case Labelling::kNumber:
    case Labelling::kAnswer:
      return true;
    case Labelling::kTags:
      labels.assign(1, -1);
      return true;
  }
  return false;
}

}  // namespace

void Dataset::Source::refuse(uint64_t row) const {
  fail(ErrorKind::kStorage, "{}: row {} is damaged; delete this file, it will be built again",
       cache.file.path().string(), row);
}

uint64_t Dataset::Source::token_bytes() const {
  return header().id_bytes + (labelling() == Labelling::kTags ? sizeof(uint16_t) : 0);
}

uint64_t Dataset::Source::most_record_bytes() const {
  return sizeof(RecordHead) + most_labels() * sizeof(int32_t) + header().longest * token_bytes();
}

void Dataset::Source::check_bounds(uint64_t row, uint64_t begin, uint64_t end) const {
  if (begin < sizeof(CacheHeader) || end > header().index_begin || begin > end) refuse(row);
  if (end - begin < sizeof(RecordHead) || end - begin > most_record_bytes()) refuse(row);
}

RecordHead Dataset::Source::head(uint64_t row) const {
  SNUG_CHECK(row < header().rows);
  uint64_t bounds[2];
  cache.file.read_exactly(header().index_begin + sizeof(uint64_t) * row, bounds, sizeof bounds);
  check_bounds(row, bounds[0], bounds[1]);
  RecordHead head;
  cache.file.read_exactly(bounds[0], &head, sizeof head);
  return head;
}

Dataset::Source::Shape Dataset::Source::shape(uint64_t row, std::span<const char> record) const {
  Shape shape;
  std::memcpy(&shape.head, record.data(), sizeof shape.head);
  shape.labels =
      labelling() == Labelling::kClasses ? shape.head.label_count() : fixed_labels(labelling());
  const uint64_t size = record.size() - sizeof(RecordHead),
                 label_bytes = uint64_t(shape.labels) * sizeof(int32_t);
  if (shape.labels > most_labels() || label_bytes > size ||
      (size - label_bytes) % token_bytes() != 0) {
    refuse(row);
  }
  const uint64_t length = (size - label_bytes) / token_bytes();
  if (length > header().longest) refuse(row);
  shape.length = uint32_t(length);
  return shape;
}

uint32_t Dataset::Source::length(uint64_t row, std::span<const char> record) const {
  return shape(row, record).length;
}

void Dataset::Source::decode(uint64_t row, std::span<const char> record, uint32_t label_words,
                             Example& out) const {
  const auto [head, labels, length] = shape(row, record);
  const char* from = record.data() + sizeof head;
  out.labels.resize(labels);
  std::memcpy(out.labels.data(), from, labels * sizeof(int32_t));
  from += labels * sizeof(int32_t);
  out.ids.resize(length);
  bool sound = header().id_bytes == 2 ? widen<uint16_t>(from, out.ids, header().vocab)
                                      : widen<uint32_t>(from, out.ids, header().vocab);
  from += length * header().id_bytes;
  out.tags.clear();
  if (labelling() == Labelling::kTags) {
    out.tags.resize(length);
    sound &= widen_tags(from, out.tags, final_ids.size());
  }
  out.continues = head.continues();
  const RecordContents contents{.split = head.split,
                                .row = head.row,
                                .continues = out.continues,
                                .labels = out.labels,
                                .ids = out.ids,
                                .tags = out.tags};
  sound &=
      head.hash == record_hash(contents) && head.label_count() == labels && head.split <= length;
  if (!sound || !finish_labels(out, labelling(), final_ids, label_words)) refuse(row);
  for (int32_t& tag : out.tags) tag = tag < 0 ? -1 : final_ids[size_t(tag)];
  out.type_ids.assign(length, 1);
  std::fill(out.type_ids.begin(), out.type_ids.begin() + head.split, 0);
}

Dataset::Files::Files(std::vector<Source> opened) : sources(std::move(opened)) {
  for (Source& source : sources) {
    const CacheHeader& header = source.header();
    source.first_row = rows;
    rows += header.rows;
    tokens += header.tokens;
    long_rows += header.long_rows;
    skipped_rows += header.skipped_rows;
    records_bytes += source.records_bytes();
    longest_text_bytes = std::max(longest_text_bytes, header.longest_text_bytes);
    longest_word_bytes = std::max(longest_word_bytes, header.longest_word_bytes);
    longest = std::max(longest, header.longest);
    most_sequences = std::max(most_sequences, header.most_sequences);
    windows = windows || header.rows != header.source_rows;
  }
}

void Dataset::Files::merge_labels(bool given) {
  std::vector<FileLabels> of_files;
  for (const Source& source : sources) {
    of_files.push_back({source.file.string(), &source.cache.labels.labels});
  }
  labels = given || sources.size() == 1 ? sources[0].cache.labels.labels : merged_labels(of_files);
  label_counts.resize(labels.names.size());
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < labels.names.size(); ++i) ids.emplace(labels.names[i], int32_t(i));
  for (Source& source : sources) {
    const LabelCollector::Result& own = source.cache.labels;
    for (const int32_t id : own.final_ids) {
      source.final_ids.push_back(ids.at(own.labels.names[size_t(id)]));
    }
    for (size_t i = 0; i < own.counts.size(); ++i) {
      label_counts[size_t(ids.at(own.labels.names[i]))] += own.counts[i];
    }
  }
  if (labelling() == Labelling::kClasses) {
    label_words = std::max<uint32_t>(1, uint32_t((labels.names.size() + 31) / 32));
  }
  if (labelling() == Labelling::kAnswer) label_words = 2;
}

const Dataset::Source& Dataset::Files::source_of(uint64_t place) const {
  const auto after = std::ranges::upper_bound(sources, place, {}, &Source::first_row);
  return *(after - 1);
}

uint64_t Dataset::Files::most_record_bytes() const {
  uint64_t most = 0;
  for (const Source& source : sources) most = std::max(most, source.most_record_bytes());
  return most;
}

}  // namespace snug

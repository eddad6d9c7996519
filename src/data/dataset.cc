#include "data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "core/error.h"
#include "data/cache_file.h"
#include "data/dataset_builder.h"

namespace snug {
namespace {

// Fields end to end, each with its size, so that no two lists of fields look alike.
class KeyText {
 public:
  KeyText& add(std::string_view text) {
    bytes_ += fmt::format("{}:", text.size());
    bytes_ += text;
    return *this;
  }
  KeyText& add(uint64_t number) { return add(fmt::to_string(number)); }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

CacheKey cache_key(const std::filesystem::path& file, const Tokenizer& tokenizer,
                   const DatasetOptions& options) {
  KeyText text;
  text.add(kCacheVersion).add(tokenizer.fingerprint()).add(options.encoding.max_length);
  text.add(uint64_t(options.encoding.labelling)).add(uint64_t(options.encoding.long_texts)).add(options.encoding.stride);
  text.add(uint64_t(options.label_separator));
  text.add(uint64_t(options.labels)).add(options.has_header).add(options.skip_bad_rows);
  text.add(options.columns.text).add(options.columns.text_pair).add(options.columns.label);
  text.add(options.known_labels != nullptr);
  if (options.known_labels != nullptr) {
    for (const std::string& name : options.known_labels->names) text.add(name);
  }
  if (options.documents) {
    text.add("documents").add(options.documents->joined).add(uint64_t(options.documents->separator));
    text.add(options.documents->attention_crosses);
  }
  CacheKey key{XXH3_64bits(text.bytes().data(), text.bytes().size()), {}};
  text.add(std::filesystem::absolute(file).lexically_normal().native());
  const XXH128_hash_t name = XXH3_128bits(text.bytes().data(), text.bytes().size());
  key.cache =
      options.cache_folder / fmt::format("rows-{:016x}{:016x}.snug", name.high64, name.low64);
  return key;
}

uint64_t hash_file(const std::filesystem::path& file) {
  uint64_t hash = 0;
  const auto bytes = hashing_source(file_source(file), &hash);
  std::vector<char> chunk(256 << 10);
  while (bytes->read(chunk.data(), chunk.size()) > 0) {
  }
  return hash;
}

// Size and time as recorded, or, where only the time differs (a copy, a touch), the same bytes.
bool is_fresh(const CacheHeader& header, const std::filesystem::path& file) {
  const InputFile source(file);
  if (header.source_bytes != source.size()) return false;
  return header.source_mtime_ns == source.mtime_ns() || header.source_hash == hash_file(file);
}

std::optional<OpenCache> open_fresh(const std::filesystem::path& file, const CacheKey& key) {
  std::optional<OpenCache> cache = open_cache(key.cache);
  if (!cache || cache->header.key != key.contents || !is_fresh(cache->header, file)) {
    return std::nullopt;
  }
  return cache;
}

}  // namespace

// One file, its cache and what its labels are called in the set of all files.
struct Dataset::Source {
  std::filesystem::path file, skipped_list;
  OpenCache cache;
  uint64_t first_row = 0;          // in all files
  std::vector<int32_t> final_ids{};  // [label by first appearance in this file]

  const CacheHeader& header() const { return cache.header; }
  Labelling labelling() const { return Labelling(header().labelling); }

  [[noreturn]] void refuse(uint64_t row) const {
    fail(ErrorKind::kStorage, "{}: row {} is damaged; delete this file, it will be built again",
         cache.file.path().string(), row);
  }

  struct Place {
    uint64_t begin = 0, end = 0;
    uint32_t labels = 0;  // how many
    uint32_t length = 0;  // ids
  };
  RecordHead head(uint64_t row) const {
    uint64_t begin = 0;
    cache.file.read_exactly(header().index_begin + 8 * row, &begin, sizeof begin);
    if (begin < sizeof(CacheHeader) || begin + sizeof(RecordHead) > header().index_begin) refuse(row);
    RecordHead head;
    cache.file.read_exactly(begin, &head, sizeof head);
    return head;
  }
  Place place(uint64_t row) const {
    SNUG_CHECK(row < header().rows);
    uint64_t bounds[2];
    cache.file.read_exactly(header().index_begin + 8 * row, bounds, sizeof bounds);
    const auto [begin, end] = bounds;
    if (begin < sizeof(CacheHeader) || end > header().index_begin || begin > end) refuse(row);
    if (end - begin < sizeof(RecordHead)) refuse(row);
    const uint64_t size = end - begin - sizeof(RecordHead);
    uint32_t labels = fixed_labels(labelling());
    if (labelling() == Labelling::kClasses) {
      RecordHead head;
      cache.file.read_exactly(begin, &head, sizeof head);
      labels = head.label_count();
    }
    const uint64_t label_bytes = uint64_t(labels) * sizeof(int32_t);
    const uint64_t token_bytes = header().id_bytes + (labelling() == Labelling::kTags ? sizeof(uint16_t) : 0);
    if (label_bytes > size || (size - label_bytes) % token_bytes != 0) refuse(row);
    const uint64_t length = (size - label_bytes) / token_bytes;
    if (length > header().longest || labels > final_ids.size() + 2) refuse(row);
    return {begin, end, labels, uint32_t(length)};
  }

  void read(uint64_t row, Example& out, uint32_t label_words) const;
};

struct Dataset::Files {
  std::vector<Source> sources;
  LabelSet labels;
  std::vector<uint64_t> label_counts;
  uint64_t rows = 0, tokens = 0, long_rows = 0, skipped_rows = 0;
  uint32_t longest = 0, most_sequences = 1, label_words = 1;
  bool windows = false;  // some text is several rows

  explicit Files(std::vector<Source> opened) : sources(std::move(opened)) {
    for (Source& source : sources) {
      const CacheHeader& header = source.header();
      source.first_row = rows;
      rows += header.rows;
      tokens += header.tokens;
      long_rows += header.long_rows;
      skipped_rows += header.skipped_rows;
      longest = std::max(longest, header.longest);
      most_sequences = std::max(most_sequences, header.most_sequences);
      windows = windows || header.rows != header.source_rows;
    }
  }

  const CacheHeader& header() const { return sources[0].header(); }
  Labelling labelling() const { return sources[0].labelling(); }

  // `given`: all files have the same set, in an order of its own.
  void merge_labels(bool given) {
    std::vector<FileLabels> of_files;
    for (const Source& source : sources) of_files.push_back({source.file.string(), &source.cache.labels.labels});
    labels = given || sources.size() == 1 ? sources[0].cache.labels.labels : merged_labels(of_files);
    label_counts.resize(labels.names.size());
    std::unordered_map<std::string_view, int32_t> ids;
    for (size_t i = 0; i < labels.names.size(); ++i) ids.emplace(labels.names[i], int32_t(i));
    for (Source& source : sources) {
      const LabelCollector::Result& own = source.cache.labels;
      for (const int32_t id : own.final_ids) source.final_ids.push_back(ids.at(own.labels.names[size_t(id)]));
      for (size_t i = 0; i < own.counts.size(); ++i) label_counts[size_t(ids.at(own.labels.names[i]))] += own.counts[i];
    }
    if (labelling() == Labelling::kClasses) label_words = std::max<uint32_t>(1, uint32_t((labels.names.size() + 31) / 32));
    if (labelling() == Labelling::kAnswer) label_words = 2;
  }

  const Source& source_of(uint64_t row) const {
    const auto after = std::ranges::upper_bound(sources, row, {}, &Source::first_row);
    return *(after - 1);
  }
};

namespace {

void check_labels(const DatasetOptions& options, const LabelSet& labels, size_t files, const std::filesystem::path& first) {
  if (options.documents || options.known_labels != nullptr || options.labels != LabelNeed::kRequired) return;
  const std::string name = files == 1 ? first.string() : fmt::format("{} and {} more", first.string(), files - 1);
  if (options.encoding.labelling == Labelling::kClass) check_classes(labels, name);
  if (options.encoding.labelling == Labelling::kClasses && labels.names.size() > kMostClasses) {
    fail(ErrorKind::kInput, "{}: {} different labels, expected at most {}", name, labels.names.size(), kMostClasses);
  }
}

OpenCache open_or_build(const std::filesystem::path& file, const Tokenizer& tokenizer, const DatasetOptions& options,
                        const CacheKey& key) {
  for (const bool may_build : {true, false}) {
    if (std::optional<OpenCache> cache = open_fresh(file, key)) return std::move(*cache);
    if (may_build) build_cache(file, tokenizer, options, key);
  }
  fail(ErrorKind::kStorage,
       "{}: could not be read back after it was written; does something else "
       "change it or {}?",
       key.cache.string(), file.string());
}

}  // namespace

Dataset::Dataset(std::shared_ptr<const Files> files, std::vector<Range> ranges)
    : files_(std::move(files)), ranges_(std::move(ranges)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Dataset Dataset::open(const std::filesystem::path& file, const Tokenizer& tokenizer, const DatasetOptions& options) {
  return open(std::vector{file}, tokenizer, options);
}

Dataset Dataset::open(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                      const DatasetOptions& options) {
  SNUG_CHECK(!files.empty() && options.encoding.max_length > 0);
  std::vector<Source> sources;
  for (const std::filesystem::path& file : files) {
    if (file == "-") {
      fail(ErrorKind::kInput, "standard input can be read only once; save it to a file first");
    }
    const CacheKey key = cache_key(file, tokenizer, options);
    sources.push_back({file, key.skipped_list(), open_or_build(file, tokenizer, options, key)});
  }
  const auto opened = std::make_shared<Files>(std::move(sources));
  opened->merge_labels(options.known_labels != nullptr);
  check_labels(options, opened->labels, files.size(), files[0]);
  return Dataset(opened, {{0, opened->rows, 0}});
}

uint64_t Dataset::rows() const { return ranges_.empty() ? 0 : ranges_.back().before + ranges_.back().count; }
uint64_t Dataset::tokens() const { return std::min(files_->tokens, rows() * longest()); }
uint32_t Dataset::most_sequences() const { return files_->most_sequences; }
int32_t Dataset::separator() const { return files_->header().separator; }
uint64_t Dataset::long_rows() const { return files_->long_rows; }
uint32_t Dataset::longest() const { return files_->longest; }
const LabelSet& Dataset::labels() const { return files_->labels; }
const std::vector<uint64_t>& Dataset::label_counts() const { return files_->label_counts; }
Labelling Dataset::labelling() const { return files_->labelling(); }
uint32_t Dataset::label_words() const { return files_->label_words; }
const std::filesystem::path& Dataset::source() const { return files_->sources[0].file; }
uint64_t Dataset::skipped_rows() const { return files_->skipped_rows; }
std::span<const EpochShare> Dataset::shares() const { return shares_; }

uint64_t Dataset::epoch_examples() const {
  uint64_t draws = 0;
  for (const EpochShare& share : shares_) draws += share.draws;
  return shares_.empty() ? rows() : draws;
}

std::vector<std::filesystem::path> Dataset::sources() const {
  std::vector<std::filesystem::path> files;
  for (const Source& source : files_->sources) files.push_back(source.file);
  return files;
}

std::vector<std::filesystem::path> Dataset::skipped_lists() const {
  std::vector<std::filesystem::path> lists;
  for (const Source& source : files_->sources) {
    if (source.header().skipped_rows > 0) lists.push_back(source.skipped_list);
  }
  return lists;
}

uint64_t Dataset::source_hash() const {
  std::vector<uint64_t> hashes;
  for (const Source& source : files_->sources) hashes.push_back(source.header().source_hash);
  return hashes.size() == 1 ? hashes[0] : XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes[0]);
}

uint64_t Dataset::fingerprint() const {
  std::vector<uint64_t> parts;
  for (const Source& source : files_->sources) parts.push_back(source.header().fingerprint);
  for (const Range& range : ranges_) parts.insert(parts.end(), {range.first, range.count});
  for (const EpochShare& share : shares_) parts.insert(parts.end(), {share.first, share.rows, share.draws});
  return XXH3_64bits(parts.data(), parts.size() * sizeof parts[0]);
}

uint64_t Dataset::place_of(uint64_t row) const {
  const auto after = std::ranges::upper_bound(ranges_, row, {}, &Range::before);
  SNUG_CHECK(after != ranges_.begin());
  const Range& range = *(after - 1);
  SNUG_CHECK(row - range.before < range.count);
  return range.first + (row - range.before);
}

bool Dataset::has_windows() const { return files_->windows; }

uint64_t Dataset::rows_before_file(size_t file) const {
  const uint64_t place = file < files_->sources.size() ? files_->sources[file].first_row : files_->rows;
  uint64_t count = 0;
  for (const Range& range : ranges_) count += std::clamp(place, range.first, range.first + range.count) - range.first;
  return count;
}

uint32_t Dataset::length(uint64_t row) const {
  const uint64_t place = place_of(row);
  const Source& source = files_->source_of(place);
  return source.place(place - source.first_row).length;
}

void Dataset::read(uint64_t row, Example& out) const {
  const uint64_t place = place_of(row);
  const Source& source = files_->source_of(place);
  source.read(place - source.first_row, out, files_->label_words);
}

Dataset::Origin Dataset::origin(uint64_t row) const {
  const uint64_t place = place_of(row);
  const Source& source = files_->source_of(place);
  const RecordHead head = source.head(place - source.first_row);
  return {size_t(&source - files_->sources.data()), head.row, head.continues()};
}

namespace {

// A record in pieces that fit a stack; nearly every record is one.
class RecordBytes {
 public:
  RecordBytes(const InputFile& file, uint64_t begin, uint64_t end) : file_(file), next_(begin), end_(end) {}

  void take(void* to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      if (at_ == filled_) fill();
      const size_t count = std::min(bytes - done, filled_ - at_);
      std::memcpy(static_cast<char*>(to) + done, piece_ + at_, count);
      at_ += count;
      done += count;
    }
  }

 private:
  void fill() {
    SNUG_CHECK(next_ < end_);
    filled_ = std::min<uint64_t>(sizeof piece_, end_ - next_);
    file_.read_exactly(next_, piece_, filled_);
    next_ += filled_;
    at_ = 0;
  }

  const InputFile& file_;
  uint64_t next_, end_;
  size_t at_ = 0, filled_ = 0;
  char piece_[4096];
};

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

// From labels as they are stored to a batch's words; false where there is no such class.
bool finish_labels(Example& example, Labelling labelling, std::span<const int32_t> final_ids, uint32_t words) {
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
    case Labelling::kAnswer: return true;
    case Labelling::kTags:
      labels.assign(1, -1);
      return true;
  }
  return false;
}

}  // namespace

void Dataset::Source::read(uint64_t row, Example& out, uint32_t label_words) const {
  const CacheHeader& header = cache.header;
  const Place place = this->place(row);
  RecordBytes bytes(cache.file, place.begin, place.end);
  RecordHead head;
  bytes.take(&head, sizeof head);
  out.labels.resize(place.labels);
  bytes.take(out.labels.data(), place.labels * sizeof(int32_t));
  const auto read_numbers = [&](std::vector<int32_t>& to, size_t stored_bytes, const auto& widen_piece) {
    to.resize(place.length);
    bool sound = true;
    char piece[1024];
    for (size_t done = 0; done < place.length;) {
      const size_t count = std::min(place.length - done, sizeof piece / stored_bytes);
      bytes.take(piece, count * stored_bytes);
      sound &= widen_piece(piece, std::span(to).subspan(done, count));
      done += count;
    }
    return sound;
  };
  bool sound = read_numbers(out.ids, header.id_bytes, [&](const char* from, std::span<int32_t> to) {
    return header.id_bytes == 2 ? widen<uint16_t>(from, to, header.vocab) : widen<uint32_t>(from, to, header.vocab);
  });
  out.tags.clear();
  if (labelling() == Labelling::kTags) {
    sound &= read_numbers(out.tags, sizeof(uint16_t), [&](const char* from, std::span<int32_t> to) {
      widen<uint16_t>(from, to, 0);
      for (int32_t& tag : to) tag = tag == kNoTag ? -1 : tag;
      return std::ranges::all_of(to, [&](int32_t tag) { return tag < int64_t(final_ids.size()); });
    });
  }
  out.continues = head.continues();
  const RecordContents contents{
      .split = head.split, .row = head.row, .continues = out.continues, .labels = out.labels, .ids = out.ids, .tags = out.tags};
  sound &= head.hash == record_hash(contents) && head.label_count() == place.labels && head.split <= place.length;
  if (!sound || !finish_labels(out, labelling(), final_ids, label_words)) refuse(row);
  for (int32_t& tag : out.tags) tag = tag < 0 ? -1 : final_ids[size_t(tag)];
  out.type_ids.assign(place.length, 1);
  std::fill(out.type_ids.begin(), out.type_ids.begin() + head.split, 0);
}

void write_skipped_list(const std::filesystem::path& file, const std::vector<const Dataset*>& datasets) {
  std::error_code ignored;
  std::set<std::filesystem::path> lists;  // both parts of a split have the same
  for (const Dataset* data : datasets) {
    if (data == nullptr) continue;
    for (const std::filesystem::path& list : data->skipped_lists()) {
      if (std::filesystem::exists(list, ignored)) lists.insert(list);
    }
  }
  if (lists.empty()) {
    std::filesystem::remove(file, ignored);
    return;
  }
  OutputFile out(file);
  for (const std::filesystem::path& list : lists) out.write(read_small_file(list));
  out.commit();
}

size_t Dataset::resident_bytes() { return 64 << 10; }

}  // namespace snug

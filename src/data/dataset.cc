#include "data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "data/dataset_builder.h"
#include "data/dataset_files.h"

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
  text.add(uint64_t(options.encoding.labelling))
      .add(uint64_t(options.encoding.long_texts))
      .add(options.encoding.stride);
  text.add(uint64_t(options.label_separator));
  text.add(uint64_t(options.labels)).add(options.has_header).add(options.skip_bad_rows);
  text.add(options.columns.text).add(options.columns.text_pair).add(options.columns.label);
  text.add(options.known_labels != nullptr);
  if (options.known_labels != nullptr) {
    for (const std::string& name : options.known_labels->names) text.add(name);
  }
  if (options.documents) {
    text.add("documents")
        .add(options.documents->joined)
        .add(uint64_t(options.documents->separator));
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

namespace {

void check_labels(const DatasetOptions& options, const LabelSet& labels, size_t files,
                  const std::filesystem::path& first) {
  if (options.documents || options.known_labels != nullptr ||
      options.labels != LabelNeed::kRequired) {
    return;
  }
  const std::string name =
      files == 1 ? first.string() : fmt::format("{} and {} more", first.string(), files - 1);
  if (options.encoding.labelling == Labelling::kClass) check_classes(labels, name);
  if (options.encoding.labelling == Labelling::kClasses && labels.names.size() > kMostClasses) {
    fail(ErrorKind::kInput, "{}: {} different labels, expected at most {}", name,
         labels.names.size(), kMostClasses);
  }
}

OpenCache open_or_build(const std::filesystem::path& file, const Tokenizer& tokenizer,
                        const DatasetOptions& options, const CacheKey& key) {
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

Dataset Dataset::open(const std::filesystem::path& file, const Tokenizer& tokenizer,
                      const DatasetOptions& options) {
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

uint64_t Dataset::rows() const {
  return ranges_.empty() ? 0 : ranges_.back().before + ranges_.back().count;
}
uint64_t Dataset::tokens() const { return std::min(files_->tokens, rows() * longest()); }
uint32_t Dataset::most_sequences() const { return files_->most_sequences; }
int32_t Dataset::separator() const { return files_->header().separator; }
uint64_t Dataset::long_rows() const { return files_->long_rows; }
uint32_t Dataset::longest() const { return files_->longest; }
uint64_t Dataset::longest_text_bytes() const { return files_->longest_text_bytes; }
uint64_t Dataset::longest_word_bytes() const { return files_->longest_word_bytes; }
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
  return hashes.size() == 1 ? hashes[0]
                            : XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes[0]);
}

uint64_t Dataset::fingerprint() const {
  std::vector<uint64_t> parts;
  for (const Source& source : files_->sources) parts.push_back(source.header().fingerprint);
  for (const Range& range : ranges_) parts.insert(parts.end(), {range.first, range.count});
  for (const EpochShare& share : shares_) {
    parts.insert(parts.end(), {share.first, share.rows, share.draws});
  }
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
  const uint64_t place =
      file < files_->sources.size() ? files_->sources[file].first_row : files_->rows;
  uint64_t count = 0;
  for (const Range& range : ranges_) {
    count += std::clamp(place, range.first, range.first + range.count) - range.first;
  }
  return count;
}

Dataset::Origin Dataset::origin(uint64_t row) const {
  const uint64_t place = place_of(row);
  const Source& source = files_->source_of(place);
  const RecordHead head = source.head(place - source.first_row);
  return {size_t(&source - files_->sources.data()), head.row, head.continues()};
}

void write_skipped_list(const std::filesystem::path& file,
                        const std::vector<const Dataset*>& datasets) {
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

}  // namespace snug

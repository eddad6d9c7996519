#include "data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

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
  text.add(uint64_t(options.labels)).add(options.has_header);
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

struct Dataset::Impl {
  std::filesystem::path source;
  OpenCache cache;

  const CacheHeader& header() const { return cache.header; }

  [[noreturn]] void refuse(uint64_t row) const {
    fail(ErrorKind::kStorage, "{}: row {} is damaged; delete this file, it will be built again",
         cache.file.path().string(), row);
  }

  Labelling labelling() const { return Labelling(header().labelling); }

  struct Place {
    uint64_t begin = 0, end = 0;
    uint32_t labels = 0;  // how many
    uint32_t length = 0;  // ids
  };
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
    if (length > header().longest || labels > cache.labels.final_ids.size() + 2) refuse(row);
    return {begin, end, labels, uint32_t(length)};
  }

  uint32_t label_words() const {
    if (labelling() == Labelling::kClasses) return std::max<uint32_t>(1, uint32_t((cache.labels.labels.names.size() + 31) / 32));
    return labelling() == Labelling::kAnswer ? 2 : 1;
  }
};

Dataset::Dataset(std::shared_ptr<const Impl> impl, uint64_t first, uint64_t rows)
    : impl_(std::move(impl)), first_(first), rows_(rows) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Dataset Dataset::open(const std::filesystem::path& file, const Tokenizer& tokenizer,
                      const DatasetOptions& options) {
  if (file == "-") {
    fail(ErrorKind::kInput, "standard input can be read only once; save it to a file first");
  }
  SNUG_CHECK(options.encoding.max_length > 0);
  const CacheKey key = cache_key(file, tokenizer, options);
  for (const bool may_build : {true, false}) {
    if (std::optional<OpenCache> cache = open_fresh(file, key)) {
      const uint64_t rows = cache->header.rows;
      return Dataset(std::make_shared<const Impl>(Impl{file, std::move(*cache)}), 0, rows);
    }
    if (may_build) build_cache(file, tokenizer, options, key);
  }
  fail(ErrorKind::kStorage,
       "{}: could not be read back after it was written; does something else "
       "change it or {}?",
       key.cache.string(), file.string());
}

uint64_t Dataset::rows() const { return rows_; }
uint64_t Dataset::tokens() const { return std::min(impl_->header().tokens, rows_ * longest()); }
uint32_t Dataset::most_sequences() const { return impl_->header().most_sequences; }
int32_t Dataset::separator() const { return impl_->header().separator; }
Dataset Dataset::part(uint64_t first, uint64_t count) const {
  SNUG_CHECK(count > 0 && first + count <= rows_);
  return Dataset(impl_, first_ + first, count);
}
uint64_t Dataset::long_rows() const { return impl_->header().long_rows; }
uint32_t Dataset::longest() const { return impl_->header().longest; }
const LabelSet& Dataset::labels() const { return impl_->cache.labels.labels; }
const std::vector<uint64_t>& Dataset::label_counts() const { return impl_->cache.labels.counts; }
Labelling Dataset::labelling() const { return impl_->labelling(); }
uint32_t Dataset::label_words() const { return impl_->label_words(); }
uint64_t Dataset::fingerprint() const { return impl_->header().fingerprint; }
uint64_t Dataset::source_hash() const { return impl_->header().source_hash; }
const std::filesystem::path& Dataset::source() const { return impl_->source; }
uint32_t Dataset::length(uint64_t row) const { return impl_->place(first_ + row).length; }

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

void Dataset::read(uint64_t row_of_part, Example& out) const {
  const uint64_t row = first_ + row_of_part;
  const CacheHeader& header = impl_->header();
  const Impl::Place place = impl_->place(row);
  RecordBytes bytes(impl_->cache.file, place.begin, place.end);
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
  const auto& final_ids = impl_->cache.labels.final_ids;
  out.tags.clear();
  if (impl_->labelling() == Labelling::kTags) {
    sound &= read_numbers(out.tags, sizeof(uint16_t), [&](const char* from, std::span<int32_t> to) {
      widen<uint16_t>(from, to, 0);
      for (int32_t& tag : to) tag = tag == kNoTag ? -1 : tag;
      return std::ranges::all_of(to, [&](int32_t tag) { return tag < int64_t(final_ids.size()); });
    });
  }
  out.continues = head.continues();
  const RecordContents contents{
      .split = head.split, .continues = out.continues, .labels = out.labels, .ids = out.ids, .tags = out.tags};
  sound &= head.hash == record_hash(contents) && head.label_count() == place.labels && head.split <= place.length;
  if (!sound || !finish_labels(out, impl_->labelling(), final_ids, impl_->label_words())) impl_->refuse(row);
  for (int32_t& tag : out.tags) tag = tag < 0 ? -1 : final_ids[size_t(tag)];
  out.type_ids.assign(place.length, 1);
  std::fill(out.type_ids.begin(), out.type_ids.begin() + head.split, 0);
}

size_t Dataset::resident_bytes() { return 64 << 10; }

}  // namespace snug

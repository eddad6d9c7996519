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
  text.add(kCacheVersion).add(tokenizer.fingerprint()).add(options.max_length);
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

  struct Place {
    uint64_t begin = 0;
    uint32_t length = 0;  // ids
  };
  Place place(uint64_t row) const {
    SNUG_CHECK(row < header().rows);
    uint64_t bounds[2];
    cache.file.read_exactly(header().index_begin + 8 * row, bounds, sizeof bounds);
    const auto [begin, end] = bounds;
    if (begin < sizeof(CacheHeader) || end > header().index_begin || begin > end) refuse(row);
    const uint64_t size = end - begin;
    if (size < sizeof(RecordHead) || (size - sizeof(RecordHead)) % header().id_bytes != 0)
      refuse(row);
    const uint64_t length = (size - sizeof(RecordHead)) / header().id_bytes;
    if (length > header().longest) refuse(row);
    return {begin, uint32_t(length)};
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
  SNUG_CHECK(options.max_length > 0);
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
uint64_t Dataset::truncated_rows() const { return impl_->header().truncated_rows; }
uint32_t Dataset::longest() const { return impl_->header().longest; }
const LabelSet& Dataset::labels() const { return impl_->cache.labels.labels; }
uint64_t Dataset::fingerprint() const { return impl_->header().fingerprint; }
uint64_t Dataset::source_hash() const { return impl_->header().source_hash; }
const std::filesystem::path& Dataset::source() const { return impl_->source; }
uint32_t Dataset::length(uint64_t row) const { return impl_->place(first_ + row).length; }

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

}  // namespace

void Dataset::read(uint64_t row_of_part, Example& out) const {
  const uint64_t row = first_ + row_of_part;
  const CacheHeader& header = impl_->header();
  const Impl::Place place = impl_->place(row);
  out.ids.resize(place.length);
  out.type_ids.resize(place.length);

  // In pieces that fit a stack; nearly every record is one.
  char piece[4096];
  RecordHead head;
  size_t skip = sizeof head;  // bytes before the ids, in the first piece
  bool sound = true;
  uint64_t at = place.begin;
  size_t done = 0;
  do {
    const size_t count = std::min(place.length - done, (sizeof piece - skip) / header.id_bytes);
    impl_->cache.file.read_exactly(at, piece, skip + count * header.id_bytes);
    if (skip > 0) std::memcpy(&head, piece, sizeof head);
    const std::span<int32_t> ids = std::span(out.ids).subspan(done, count);
    sound &= header.id_bytes == 2 ? widen<uint16_t>(piece + skip, ids, header.vocab)
                                  : widen<uint32_t>(piece + skip, ids, header.vocab);
    at += skip + count * header.id_bytes;
    done += count;
    skip = 0;
  } while (done < place.length);

  const auto& final_ids = impl_->cache.labels.final_ids;
  sound &= head.hash == record_hash({row, head.label, head.split, out.ids}) &&
           head.split <= place.length && head.label >= -1 && head.label < int64_t(final_ids.size());
  if (!sound) impl_->refuse(row);
  out.label = head.label < 0 ? -1 : final_ids[size_t(head.label)];
  std::fill(out.type_ids.begin(), out.type_ids.begin() + head.split, 0);
  std::fill(out.type_ids.begin() + head.split, out.type_ids.end(), 1);
}

size_t Dataset::resident_bytes() { return 64 << 10; }

}  // namespace snug

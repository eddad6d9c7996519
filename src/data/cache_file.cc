#include "data/cache_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/philox.h"

namespace snug {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kChunk = 64 << 10;

using HashState = std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)>;

HashState new_hash() {
  HashState state(XXH3_createState(), XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  return state;
}

uint64_t hash_of_header(const CacheHeader& header) {
  return XXH3_64bits(&header, offsetof(CacheHeader, header_hash));
}

// The count, the final id of every label in order of first appearance, how often each occurs and
// the names in final order.
std::string serialized(const LabelCollector::Result& labels) {
  std::string out;
  const auto put = [&](uint32_t value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(uint32_t(labels.labels.names.size()));
  for (const int32_t id : labels.final_ids) put(uint32_t(id));
  for (const uint64_t count : labels.counts) put(uint32_t(count)), put(uint32_t(count >> 32));
  for (const std::string& name : labels.labels.names) {
    put(uint32_t(name.size()));
    out += name;
  }
  return out;
}

// The inverse; false where the bytes do not add up.
bool parse_labels(std::string_view bytes, LabelCollector::Result& labels) {
  const auto take = [&](uint32_t& value) {
    if (bytes.size() < sizeof value) return false;
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
    return true;
  };
  uint32_t count = 0;
  if (!take(count) || count > bytes.size() / 16) return false;
  for (uint32_t i = 0, id = 0; i < count; ++i) {
    if (!take(id) || id >= count) return false;
    labels.final_ids.push_back(int32_t(id));
  }
  for (uint32_t i = 0, low = 0, high = 0; i < count; ++i) {
    if (!take(low) || !take(high)) return false;
    labels.counts.push_back(uint64_t(high) << 32 | low);
  }
  for (uint32_t i = 0, size = 0; i < count; ++i) {
    if (!take(size) || size > bytes.size()) return false;
    labels.labels.names.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return bytes.empty();
}

bool header_is_sound(const CacheHeader& header, uint64_t file_bytes) {
  const CacheHeader expected;
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0) return false;
  if (header.version != kCacheVersion || header.header_hash != hash_of_header(header)) return false;
  return header.file_bytes == file_bytes && header.rows > 0 &&
         (header.id_bytes == 2 || header.id_bytes == 4) &&
         header.index_begin >= sizeof(CacheHeader) && header.index_begin < file_bytes &&
         header.rows < file_bytes / 8 && header.labels_begin <= file_bytes &&
         header.labels_begin == header.index_begin + 8 * (header.rows + 1);
}

bool tail_is_sound(const InputFile& file, const CacheHeader& header) {
  const HashState hash = new_hash();
  std::vector<char> chunk(kChunk);
  for (uint64_t at = header.index_begin; at < header.file_bytes;) {
    const size_t count = std::min<uint64_t>(kChunk, header.file_bytes - at);
    file.read_exactly(at, chunk.data(), count);
    XXH3_64bits_update(hash.get(), chunk.data(), count);
    at += count;
  }
  return XXH3_64bits_digest(hash.get()) == header.tail_hash;
}

}  // namespace

uint32_t record_hash(const RecordContents& contents) {
  const uint64_t head =
      uint64_t(contents.labels.size() << 1 | contents.continues) << 32 | contents.split;
  uint64_t hash = mix64(mix64(head) ^ contents.row);
  for (const std::span<const int32_t> part : {contents.labels, contents.ids, contents.tags}) {
    if (!part.empty()) hash = XXH3_64bits_withSeed(part.data(), part.size_bytes(), hash);
  }
  return uint32_t(hash);
}

void append_record(const RecordContents& contents, uint32_t id_bytes, std::vector<char>& out) {
  SNUG_CHECK(contents.tags.empty() || contents.tags.size() == contents.ids.size());
  const RecordHead head{
      record_hash(contents),
      uint32_t(contents.labels.size()) | (contents.continues ? RecordHead::kContinues : 0),
      contents.split, contents.row};
  const size_t begin = out.size();
  out.resize(begin + sizeof head + contents.labels.size_bytes() + contents.ids.size() * id_bytes +
             contents.tags.size() * sizeof(uint16_t));
  char* target = out.data() + begin;
  const auto put = [&](const void* from, size_t bytes) {
    std::memcpy(target, from, bytes);
    target += bytes;
  };
  put(&head, sizeof head);
  for (const int32_t label : contents.labels) put(&label, sizeof label);
  for (const int32_t id : contents.ids) {
    put(&id, id_bytes);  // little-endian: the low bytes come first
  }
  for (const int32_t tag : contents.tags) {
    const uint16_t stored = tag < 0 ? kNoTag : uint16_t(tag);
    put(&stored, sizeof stored);
  }
}

CacheWriter::CacheWriter(const std::filesystem::path& path)
    : file_(path), path_(path), offsets_file_(path.parent_path(), "offsets of rows") {
  const CacheHeader placeholder;
  file_.write(&placeholder, sizeof placeholder);
  offsets_.reserve(kChunk / 8);
}

void CacheWriter::append(std::span<const char> records, std::span<const uint32_t> sizes) {
  file_.write(records.data(), records.size());
  for (const uint32_t size : sizes) {
    add_offset(end_);
    end_ += size;
  }
}

void CacheWriter::add_offset(uint64_t offset) {
  offsets_.push_back(offset);
  if (offsets_.size() == kChunk / 8) flush_offsets();
}

void CacheWriter::flush_offsets() {
  offsets_file_.write(offsets_written_, std::as_bytes(std::span(offsets_)));
  offsets_written_ += offsets_.size() * sizeof(uint64_t);
  offsets_.clear();
}

void CacheWriter::copy_offsets(void* hash_state) {
  std::vector<std::byte> chunk(kChunk);
  for (uint64_t at = 0; at < offsets_written_;) {
    const auto part = std::span(chunk).first(std::min<uint64_t>(kChunk, offsets_written_ - at));
    offsets_file_.read(at, part);
    XXH3_64bits_update(static_cast<XXH3_state_t*>(hash_state), part.data(), part.size());
    file_.write(part.data(), part.size());
    at += part.size();
  }
}

void CacheWriter::commit(CacheHeader header, const LabelCollector::Result& labels) {
  add_offset(end_);
  flush_offsets();
  const HashState hash = new_hash();
  copy_offsets(hash.get());
  const std::string tail = serialized(labels);
  XXH3_64bits_update(hash.get(), tail.data(), tail.size());
  file_.write(tail);
  header.index_begin = end_;
  header.labels_begin = end_ + offsets_written_;
  header.file_bytes = header.labels_begin + tail.size();
  header.tail_hash = XXH3_64bits_digest(hash.get());
  header.header_hash = hash_of_header(header);
  file_.write_at(0, &header, sizeof header);
  file_.commit();
}

std::optional<OpenCache> open_cache(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  try {
    OpenCache cache{InputFile(path), {}, {}};
    if (cache.file.size() < sizeof(CacheHeader)) return std::nullopt;
    cache.file.read_exactly(0, &cache.header, sizeof cache.header);
    const CacheHeader& header = cache.header;
    if (!header_is_sound(header, cache.file.size())) return std::nullopt;
    if (!tail_is_sound(cache.file, header)) return std::nullopt;
    std::string labels(header.file_bytes - header.labels_begin, '\0');
    cache.file.read_exactly(header.labels_begin, labels.data(), labels.size());
    if (!parse_labels(labels, cache.labels)) return std::nullopt;
    return cache;
  } catch (const Error&) {
    return std::nullopt;  // vanished or cut off since: as good as absent
  }
}

}  // namespace snug

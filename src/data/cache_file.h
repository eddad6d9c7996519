// The file behind a Dataset (its grammar is in docs/data.md): a header, one record a row, the
// offset of every record, the labels. Everything is checked against hashes, because a cache
// outlives the program that wrote it: header, offsets and labels when it is opened, a record when
// it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/file.h"
#include "core/nameless_file.h"
#include "data/labels.h"

namespace snug {

inline constexpr uint32_t kCacheVersion = 7;

// Written as it lies in memory, little-endian.
struct CacheHeader {
  char magic[8] = {'S', 'N', 'U', 'G', 'R', 'O', 'W', 'S'};
  uint32_t version = kCacheVersion;
  uint32_t id_bytes = 4;  // 2 where the vocabulary has fewer than 65536 entries
  uint64_t key = 0;       // of everything but the source's contents
  uint64_t source_bytes = 0;
  int64_t source_mtime_ns = 0;
  uint64_t source_hash = 0;
  uint64_t fingerprint = 0;
  uint64_t rows = 0, tokens = 0, long_rows = 0;
  uint64_t source_rows = 0;   // fewer than rows where texts were cut into windows
  uint64_t skipped_rows = 0;  // of the source, because they were wrong
  uint32_t longest = 0, vocab = 0;
  uint32_t most_sequences = 1;      // of a row
  int32_t separator = -1;           // behind which a row is cut into sequences; -1: rows are whole
  uint64_t labelling = 0;           // Labelling
  uint64_t longest_text_bytes = 0;  // of the source, both texts of a pair
  uint64_t longest_word_bytes = 0;  // without white space, in texts of more than 4 KiB
  uint64_t index_begin = 0;         // (rows + 1) u64 offsets of the records
  uint64_t labels_begin = 0;        // from here to the end: the labels
  uint64_t file_bytes = 0;
  uint64_t tail_hash = 0;    // XXH3 of [index_begin, file_bytes)
  uint64_t header_hash = 0;  // XXH3 of everything above
};
static_assert(sizeof(CacheHeader) == 176);

// In front of every record's labels (i32), ids and tags (u16, as many as ids, where rows have
// tags).
struct RecordHead {
  uint32_t hash = 0;  // record_hash()
  // How many; the highest bit: the next record is of the same row of the source.
  uint32_t labels = 0;
  uint32_t split = 0;  // ids before this one belong to the first text, the others to the second
  // Which row of the source, from 0, those that were left out counted; modulo 2^32.
  uint32_t row = 0;

  static constexpr uint32_t kContinues = 1u << 31;
  bool continues() const { return (labels & kContinues) != 0; }
  uint32_t label_count() const { return labels & ~kContinues; }
};
static_assert(sizeof(RecordHead) == 16);
inline constexpr uint16_t kNoTag = 0xffff;

struct RecordContents {
  uint32_t split = 0, row = 0;
  bool continues = false;
  std::span<const int32_t> labels;  // classes by first appearance
  std::span<const int32_t> ids;
  std::span<const int32_t> tags{};  // by first appearance; -1: none
};
// Of labels, ids and tags as i32, seeded by all the rest.
uint32_t record_hash(const RecordContents& contents);
void append_record(const RecordContents& contents, uint32_t id_bytes, std::vector<char>& out);

// Memory stays constant however many rows come: offsets wait in a nameless file on the same disk.
class CacheWriter {
 public:
  explicit CacheWriter(const std::filesystem::path& path);
  CacheWriter(const CacheWriter&) = delete;

  // Consecutive records and the size of each.
  void append(std::span<const char> records, std::span<const uint32_t> sizes);
  // `header` with everything but places and hashes filled in.
  void commit(CacheHeader header, const LabelCollector::Result& labels);

 private:
  void add_offset(uint64_t offset);
  void flush_offsets();
  void copy_offsets(void* hash_state);

  OutputFile file_;
  std::filesystem::path path_;
  NamelessFile offsets_file_;
  uint64_t end_ = sizeof(CacheHeader);
  uint64_t offsets_written_ = 0;  // bytes
  std::vector<uint64_t> offsets_;
};

// Null where the file is not there or not a whole, undamaged cache of this version.
struct OpenCache {
  InputFile file;
  CacheHeader header;
  LabelCollector::Result labels;
};
std::optional<OpenCache> open_cache(const std::filesystem::path& path);

}  // namespace snug

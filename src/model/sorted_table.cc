#include "model/sorted_table.h"

#include <cstring>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/wire_reader.h"
#include "model/tensor_file.h"

namespace snug {
namespace {

constexpr uint64_t kMagic = 0xdb4775248b80fb57;
constexpr size_t kFooterBytes = 48, kTrailerBytes = 5;  // trailer: type and checksum of a block
constexpr uint8_t kPlain = 0, kSnappy = 1;

struct Handle {
  uint64_t offset = 0, bytes = 0;
};

class TableReader {
 public:
  TableReader(std::string_view file, std::string_view origin) : file_(file), origin_(origin) {}

  std::vector<TableEntry> read() {
    if (file_.size() < kFooterBytes) bad("{} bytes, too few for the end of a table", file_.size());
    std::string_view footer = file_.substr(file_.size() - kFooterBytes);
    std::string_view magic = footer.substr(kFooterBytes - sizeof(kMagic));
    if (*take_fixed<uint64_t>(magic) != kMagic) {
      bad("does not end as a table does; was the file cut off?");
    }
    take_handle(footer, file_.size() -
                            kFooterBytes);  // of the metaindex, which holds nothing that is needed
    const Handle index = take_handle(footer, file_.size() - kFooterBytes);
    std::vector<TableEntry> entries;
    for (const TableEntry& block : read_block(index)) {
      std::string_view value = block.value;
      for (TableEntry& entry : read_block(take_handle(value, index.offset))) {
        if (!entries.empty() && entry.key <= entries.back().key) {
          bad("key {} comes behind {}", in_quotes(entry.key), in_quotes(entries.back().key));
        }
        entries.push_back(std::move(entry));
      }
    }
    return entries;
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: {}", origin_, fmt::format(format, std::forward<Args>(args)...)));
  }

  size_t place_of(std::string_view rest) const { return size_t(rest.data() - file_.data()); }

  // Blocks end before `limit`.
  Handle take_handle(std::string_view& bytes, uint64_t limit) const {
    const size_t place = place_of(bytes);
    const auto offset = take_varint(bytes), size = take_varint(bytes);
    if (!offset || !size) bad("byte {}: no block is named here", place);
    if (*offset > limit || *size > limit - *offset || limit - *offset - *size < kTrailerBytes) {
      bad("byte {}: names a block of {} bytes at byte {}, behind the end at {}", place, *size,
          *offset, limit);
    }
    return {*offset, *size};
  }

  std::vector<TableEntry> read_block(const Handle& handle) const {
    const std::string_view block = file_.substr(handle.offset, handle.bytes);
    const std::string_view checked = file_.substr(handle.offset, handle.bytes + 1);
    std::string_view trailer = file_.substr(handle.offset + handle.bytes, kTrailerBytes);
    const auto type = uint8_t(trailer.front());
    trailer.remove_prefix(1);
    const uint32_t expected = unmasked_crc32c(*take_fixed<uint32_t>(trailer));
    const uint32_t found = crc32c(std::as_bytes(std::span(checked)));
    if (found != expected) {
      bad("the block at byte {} is damaged: its checksum is {:08x}, expected {:08x}", handle.offset,
          found, expected);
    }
    if (type == kSnappy) {
      bad("the block at byte {} is compressed with snappy, which TensorFlow's checkpoints are not; "
          "it is not read",
          handle.offset);
    }
    if (type != kPlain) bad("the block at byte {} is of unknown type {}", handle.offset, type);
    return read_entries(block);
  }

  std::vector<TableEntry> read_entries(std::string_view block) const {
    if (block.size() < sizeof(uint32_t)) {
      bad("byte {}: a block of {} bytes", place_of(block), block.size());
    }
    std::string_view tail = block.substr(block.size() - sizeof(uint32_t));
    const uint64_t restarts = *take_fixed<uint32_t>(tail);
    if (restarts > block.size() / sizeof(uint32_t) - 1) {
      bad("the block at byte {} claims {} restarts in {} bytes", place_of(block), restarts,
          block.size());
    }
    std::string_view rest = block.substr(0, block.size() - (restarts + 1) * sizeof(uint32_t));
    std::string_view starts = block.substr(rest.size());
    for (uint64_t i = 0; i < restarts; ++i) {
      const uint64_t start = *take_fixed<uint32_t>(starts);
      if (start > rest.size()) {
        bad("the block at byte {} has a restart at {} of {}", place_of(block), start, rest.size());
      }
    }
    std::vector<TableEntry> entries;
    std::string key;
    while (!rest.empty()) {
      const size_t place = place_of(rest);
      const auto shared = take_varint(rest), unshared = take_varint(rest),
                 length = take_varint(rest);
      if (!shared || !unshared || !length || *shared > key.size() || *unshared > rest.size() ||
          *length > rest.size() - *unshared) {
        bad("byte {}: an entry that reaches behind its block", place);
      }
      key.resize(*shared);
      key += rest.substr(0, *unshared);
      entries.push_back({key, rest.substr(*unshared, *length)});
      rest.remove_prefix(*unshared + *length);
      // Keys repeat the keys before them, so that a small file can hold a lot of them.
      keys_bytes_ += key.size();
      if (keys_bytes_ > kMaxKeysBytes) {
        bad("byte {}: its keys take more than {} bytes", place, kMaxKeysBytes);
      }
    }
    return entries;
  }

  static constexpr uint64_t kMaxKeysBytes = 64 << 20;
  std::string_view file_, origin_;
  mutable uint64_t keys_bytes_ = 0;
};

}  // namespace

std::vector<TableEntry> read_sorted_table(std::string_view file, std::string_view origin) {
  return TableReader(file, origin).read();
}

}  // namespace snug

// TensorFlow checkpoints for tests, piece by piece, so that each piece can be wrong.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/crc32c.h"
#include "core/wire_writer.h"

namespace snug::tf {

using wire::bytes_field;
using wire::fixed;
using wire::fixed_field;
using wire::number_field;
using wire::varint;

inline uint32_t masked_crc(const std::string& bytes) {
  return masked_crc32c(crc32c(std::as_bytes(std::span(bytes))));
}

struct BundleEntry {
  uint64_t dtype = 1;
  std::vector<uint64_t> shape;
  uint64_t shard = 0, offset = 0, bytes = 0;
  uint32_t crc = 0;  // masked
  std::string extra{};

  std::string encode() const {
    std::string dimensions;
    for (const uint64_t extent : shape) dimensions += bytes_field(2, number_field(1, extent));
    return number_field(1, dtype) + bytes_field(2, dimensions) + number_field(3, shard) +
           number_field(4, offset) + number_field(5, bytes) + fixed_field(6, crc) + extra;
  }
};

inline std::string header(uint64_t shards, uint64_t endianness = 0) {
  return number_field(1, shards) + number_field(2, endianness) + bytes_field(3, number_field(1, 1));
}

// A block without its type and checksum. Keys are whole: nothing is shared.
inline std::string block(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string result, restarts;
  for (const auto& [key, value] : entries) {
    restarts += fixed(uint32_t(result.size()));
    result += varint(0) + varint(key.size()) + varint(value.size()) + key + value;
  }
  return result + restarts + fixed(uint32_t(entries.size()));
}
inline std::string sealed(const std::string& block, char type = 0) {
  const std::string checked = block + type;
  return checked + fixed(masked_crc(checked));
}
inline std::string handle(uint64_t offset, uint64_t bytes) {
  return varint(offset) + varint(bytes);
}
inline std::string footer(const std::string& metaindex, const std::string& index) {
  std::string handles = metaindex + index;
  handles.resize(40, '\0');
  return handles + fixed(uint64_t{0xdb4775248b80fb57});
}
// A table of one data block, which is `data` as it stands in the file.
inline std::string table_of(const std::string& data, uint64_t data_bytes) {
  const std::string empty = block({}), index = block({{"z", handle(0, data_bytes)}});
  const uint64_t metaindex_at = data.size(), index_at = metaindex_at + empty.size() + 5;
  return data + sealed(empty) + sealed(index) +
         footer(handle(metaindex_at, empty.size()), handle(index_at, index.size()));
}
inline std::string table(const std::map<std::string, std::string>& entries) {
  const std::string data = block({entries.begin(), entries.end()});
  return table_of(sealed(data), data.size());
}

}  // namespace snug::tf

// LevelDB's table of sorted keys and values, the format of TensorFlow's .index files. Blocks are
// checked by their checksums; compressed ones are refused.
//
//     table  = block* metaindex-block index-block footer
//     block  = entry* restart* number-of-restarts, type (0: as it is), masked CRC-32C of all before
//     it entry  = shared, unshared, value length (varint), the unshared end of the key, the value
//     footer = handle of the metaindex, handle of the index, zeros up to 40 bytes, magic; a handle
//     is (offset, bytes)
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct TableEntry {
  std::string key;
  std::string_view value;  // in the file's bytes
};

// All entries in order. Errors are kInput, with the byte; `origin` is the file name.
std::vector<TableEntry> read_sorted_table(std::string_view file, std::string_view origin);

}  // namespace snug

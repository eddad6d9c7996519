// Zip archives of stored records, as torch.save writes them: read strictly. Both places that
// describe a record must agree; names are plain, unique and never touch the file system; records
// lie inside of the file and do not overlap; compressed, encrypted and split archives are refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace snug {

struct ZipRecord {
  std::string name;
  uint64_t header = 0;             // where what describes it begins in the file
  uint64_t offset = 0, bytes = 0;  // of the data, in the file
  uint32_t crc32 = 0;
};

class ZipArchive {
 public:
  // Reads the directory, no data. Errors are kInput. `file` must outlive the archive.
  explicit ZipArchive(const InputFile& file);

  const std::vector<ZipRecord>& records() const { return records_; }  // by name
  const ZipRecord* find(std::string_view name) const;
  // Reads the whole record; an error names it where its checksum is wrong.
  void verify(const ZipRecord& record) const;

 private:
  struct Directory {
    uint64_t offset, bytes, count;
  };
  Directory find_directory() const;
  Directory find_zip64_directory(uint64_t end_record, const Directory& stated) const;
  ZipRecord read_record(std::string_view& directory) const;
  void locate(ZipRecord& record, uint16_t flags) const;
  void check_records(uint64_t directory_offset);

  const InputFile& file_;
  std::vector<ZipRecord> records_;
  bool has_checksums_ = false;
};

}  // namespace snug

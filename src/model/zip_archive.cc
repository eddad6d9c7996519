#include "model/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "model/tensor_file.h"

namespace snug {
namespace {

constexpr uint64_t kMaxDirectoryBytes = 64 << 20;
constexpr size_t kEndBytes = 22, kZip64EndBytes = 56, kLocatorBytes = 20, kEntryBytes = 46,
                 kHeaderBytes = 30;
constexpr uint32_t kEndMark = 0x06054b50, kZip64EndMark = 0x06064b50, kLocatorMark = 0x07064b50;
constexpr uint32_t kEntryMark = 0x02014b50, kHeaderMark = 0x04034b50;
constexpr uint16_t kEncrypted = 1, kSizesBehind = 8, kStrong = 0x40;  // flags
constexpr uint16_t kZip64Field = 1;

// Little-endian numbers at fixed places of a structure.
template <class T>
T number_at(std::string_view bytes, size_t place) {
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof(value));
  return value;
}

std::string read_string(const InputFile& file, uint64_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  file.read_exactly(offset, text.data(), bytes);
  return text;
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != name.npos ||
      name.find('\0') != name.npos) {
    return false;
  }
  if (name.size() > 1 && name[1] == ':') return false;
  const std::string around = "/" + std::string(name) + "/";
  return around.find("/../") == around.npos;
}

// Sizes and places that do not fit into 32 bits stand in an extra field, in this order, those that
// are needed.
void read_zip64_field(std::string_view extra, std::initializer_list<uint64_t*> wide,
                      const std::string& where) {
  while (extra.size() >= 4) {
    const size_t bytes = number_at<uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) break;
    if (number_at<uint16_t>(extra, 0) == kZip64Field) {
      std::string_view values = extra.substr(4, bytes);
      for (uint64_t* const value : wide) {
        if (*value != UINT32_MAX) continue;
        if (values.size() < 8) break;
        *value = number_at<uint64_t>(values, 0);
        values.remove_prefix(8);
      }
      return;
    }
    extra.remove_prefix(4 + bytes);
  }
  for (const uint64_t* const value : wide) {
    if (*value == UINT32_MAX) fail(ErrorKind::kInput, "{}: its zip64 field is missing", where);
  }
}

}  // namespace

ZipArchive::ZipArchive(const InputFile& file) : file_(file) {
  const Directory directory = find_directory();
  const std::string path = file.path().string();
  if (directory.bytes > kMaxDirectoryBytes) {
    fail(ErrorKind::kInput, "{}: zip directory of {} bytes, expected at most {}", path,
         directory.bytes, kMaxDirectoryBytes);
  }
  const std::string text = read_string(file, directory.offset, directory.bytes);
  std::string_view rest = text;
  for (uint64_t i = 0; i < directory.count; ++i) records_.push_back(read_record(rest));
  if (!rest.empty()) {
    fail(ErrorKind::kInput, "{}: {} bytes behind the last entry of its zip directory", path,
         rest.size());
  }
  check_records(directory.offset);
}

// The last structure of the file, behind which only a comment may stand.
ZipArchive::Directory ZipArchive::find_directory() const {
  const std::string path = file_.path().string();
  const uint64_t tail_bytes = std::min<uint64_t>(file_.size(), kEndBytes + UINT16_MAX);
  const uint64_t tail_offset = file_.size() - tail_bytes;
  const std::string tail = read_string(file_, tail_offset, tail_bytes);
  for (size_t at = tail_bytes < kEndBytes ? 0 : tail_bytes - kEndBytes + 1; at-- > 0;) {
    const bool is_end = number_at<uint32_t>(tail, at) == kEndMark &&
                        number_at<uint16_t>(tail, at + 20) == tail_bytes - at - kEndBytes;
    if (!is_end) continue;
    const std::string_view end = std::string_view(tail).substr(at, kEndBytes);
    const auto disks = {number_at<uint16_t>(end, 4), number_at<uint16_t>(end, 6)};
    const uint64_t count = number_at<uint16_t>(end, 10);
    if (std::ranges::count(disks, 0) != 2 || number_at<uint16_t>(end, 8) != count) {
      fail(ErrorKind::kInput, "{}: is one part of a split zip archive", path);
    }
    return find_zip64_directory(
        tail_offset + at, {number_at<uint32_t>(end, 16), number_at<uint32_t>(end, 12), count});
  }
  fail(ErrorKind::kInput, "{}: the end of the zip archive is missing; was the file cut off?", path);
}

// `stated`: what the 32-bit structure at `end_record` says; a 64-bit one may stand before it.
ZipArchive::Directory ZipArchive::find_zip64_directory(uint64_t end_record,
                                                       const Directory& stated) const {
  const std::string path = file_.path().string();
  Directory found = stated;
  uint64_t behind = end_record;  // where the directory has to end
  const bool located =
      end_record >= kLocatorBytes &&
      number_at<uint32_t>(read_string(file_, end_record - kLocatorBytes, kLocatorBytes), 0) ==
          kLocatorMark;
  if (located) {
    const std::string locator = read_string(file_, end_record - kLocatorBytes, kLocatorBytes);
    behind = number_at<uint64_t>(locator, 8);
    if (end_record - kLocatorBytes < kZip64EndBytes ||
        behind != end_record - kLocatorBytes - kZip64EndBytes) {
      fail(ErrorKind::kInput, "{}: the zip64 structure is not at byte {}, where it is said to be",
           path, behind);
    }
    const std::string end = read_string(file_, behind, kZip64EndBytes);
    if (number_at<uint32_t>(end, 0) != kZip64EndMark ||
        number_at<uint64_t>(end, 4) != kZip64EndBytes - 12) {
      fail(ErrorKind::kInput, "{}: no zip64 structure at byte {}", path, behind);
    }
    found = {number_at<uint64_t>(end, 48), number_at<uint64_t>(end, 40),
             number_at<uint64_t>(end, 32)};
    const auto agrees = [](uint64_t narrow, uint64_t wide, uint64_t most) {
      return narrow == wide || narrow == most;
    };
    if (!agrees(stated.offset, found.offset, UINT32_MAX) ||
        !agrees(stated.bytes, found.bytes, UINT32_MAX) ||
        !agrees(stated.count, found.count, UINT16_MAX) ||
        number_at<uint64_t>(end, 24) != found.count) {
      fail(ErrorKind::kInput, "{}: its zip and zip64 structures disagree", path);
    }
  }
  if (found.offset > behind || found.bytes != behind - found.offset) {
    fail(ErrorKind::kInput, "{}: zip directory at byte {} of {} bytes, expected to end at byte {}",
         path, found.offset, found.bytes, behind);
  }
  if (found.count > found.bytes / kEntryBytes) {
    fail(ErrorKind::kInput, "{}: {} zip records in a directory of {} bytes", path, found.count,
         found.bytes);
  }
  return found;
}

ZipRecord ZipArchive::read_record(std::string_view& directory) const {
  const std::string path = file_.path().string();
  if (directory.size() < kEntryBytes || number_at<uint32_t>(directory, 0) != kEntryMark) {
    fail(ErrorKind::kInput, "{}: record {} of its zip directory is broken", path, records_.size());
  }
  const std::string_view entry = directory.substr(0, kEntryBytes);
  const size_t name_bytes = number_at<uint16_t>(entry, 28),
               extra_bytes = number_at<uint16_t>(entry, 30),
               comment_bytes = number_at<uint16_t>(entry, 32);
  if (name_bytes + extra_bytes + comment_bytes > directory.size() - kEntryBytes) {
    fail(ErrorKind::kInput, "{}: record {} of its zip directory is cut off", path, records_.size());
  }
  ZipRecord record{.name = std::string(directory.substr(kEntryBytes, name_bytes)),
                   .crc32 = number_at<uint32_t>(entry, 16)};
  const std::string where = fmt::format("{}: record {}", path, in_quotes(record.name));
  const uint16_t flags = number_at<uint16_t>(entry, 8);
  if (!is_plain_name(record.name)) {
    fail(ErrorKind::kInput, "{}: expected a relative name without ..", where);
  }
  if (flags & (kEncrypted | kStrong)) fail(ErrorKind::kInput, "{}: is encrypted", where);
  if (number_at<uint16_t>(entry, 10) != 0) {
    fail(ErrorKind::kInput, "{}: is compressed; torch.save stores records as they are", where);
  }
  uint64_t stored = number_at<uint32_t>(entry, 20);
  record.bytes = number_at<uint32_t>(entry, 24);
  record.header = number_at<uint32_t>(entry, 42);
  read_zip64_field(directory.substr(kEntryBytes + name_bytes, extra_bytes),
                   {&record.bytes, &stored, &record.header}, where);
  if (stored != record.bytes) {
    fail(ErrorKind::kInput,
         "{}: {} bytes take {}, expected as many: records are stored as they are", where,
         record.bytes, stored);
  }
  locate(record, flags);
  directory.remove_prefix(kEntryBytes + name_bytes + extra_bytes + comment_bytes);
  return record;
}

// The record's own header must say what the directory says; sizes may stand behind the data
// instead.
void ZipArchive::locate(ZipRecord& record, uint16_t flags) const {
  const uint64_t header = record.header;
  const std::string where =
      fmt::format("{}: record {}", file_.path().string(), in_quotes(record.name));
  const size_t start_bytes = kHeaderBytes + record.name.size();
  if (header > file_.size() || start_bytes > file_.size() - header) {
    fail(ErrorKind::kInput, "{}: its header is at byte {}, behind the end of the file", where,
         header);
  }
  const std::string start = read_string(file_, header, start_bytes);
  const auto agrees = [&](size_t place, uint64_t expected) {
    const uint32_t found = number_at<uint32_t>(start, place);
    return found == expected || found == UINT32_MAX || ((flags & kSizesBehind) && found == 0);
  };
  if (number_at<uint32_t>(start, 0) != kHeaderMark || number_at<uint16_t>(start, 6) != flags ||
      number_at<uint16_t>(start, 8) != 0 || number_at<uint16_t>(start, 26) != record.name.size() ||
      start.substr(kHeaderBytes) != record.name || !agrees(14, record.crc32) ||
      !agrees(18, record.bytes) || !agrees(22, record.bytes)) {
    fail(ErrorKind::kInput, "{}: its header at byte {} and the zip directory disagree", where,
         header);
  }
  record.offset = header + start_bytes + number_at<uint16_t>(start, 28);
  if (record.offset > file_.size() || record.bytes > file_.size() - record.offset) {
    fail(ErrorKind::kInput, "{}: {} bytes at byte {} reach behind the end of the file", where,
         record.bytes, record.offset);
  }
}

void ZipArchive::check_records(uint64_t directory_offset) {
  const std::string path = file_.path().string();
  std::ranges::sort(records_, {}, &ZipRecord::header);
  for (size_t i = 0; i < records_.size(); ++i) {
    const uint64_t limit = i + 1 < records_.size() ? records_[i + 1].header : directory_offset;
    if (records_[i].offset + records_[i].bytes > limit) {
      fail(ErrorKind::kInput, "{}: record {} overlaps what follows it at byte {}", path,
           in_quotes(records_[i].name), limit);
    }
    has_checksums_ |= records_[i].crc32 != 0;
  }
  std::ranges::sort(records_, {}, &ZipRecord::name);
  const auto twice = std::ranges::adjacent_find(records_, {}, &ZipRecord::name);
  if (twice != records_.end()) {
    fail(ErrorKind::kInput, "{}: record {} is there twice", path, in_quotes(twice->name));
  }
}

const ZipRecord* ZipArchive::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(records_, name, {}, &ZipRecord::name);
  return found != records_.end() && found->name == name ? &*found : nullptr;
}

void ZipArchive::verify(const ZipRecord& record) const {
  if (!has_checksums_) {
    return;  // torch.serialization.set_crc32_options(False) leaves them all at zero
  }
  std::vector<uint8_t> buffer(kTensorBufferBytes);
  uLong crc = ::crc32(0, nullptr, 0);
  for (uint64_t done = 0; done < record.bytes;) {
    const size_t count = size_t(std::min<uint64_t>(buffer.size(), record.bytes - done));
    file_.read_exactly(record.offset + done, buffer.data(), count);
    crc = ::crc32(crc, buffer.data(), uInt(count));
    done += count;
  }
  if (uint32_t(crc) != record.crc32) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: record {} is damaged: its checksum is {:08x}, expected {:08x}",
                            file_.path().string(), in_quotes(record.name), crc, record.crc32),
                "fetch the file again");
  }
}

}  // namespace snug

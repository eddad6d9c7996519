// The unread part of a stream as one contiguous stretch of memory: readers search it with memchr
// and hand out views into it. It slides and grows on demand and shrinks again after a giant record,
// so memory follows the longest record in sight, up to a cap.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "data/byte_source.h"

namespace snug {

class TextWindow {
 public:
  // Drops a UTF-8 byte order mark; refuses UTF-16 and compressed data by name (kInput).
  // record_room: as RowReaderOptions has it
  TextWindow(std::unique_ptr<ByteSource> source, std::string file, size_t max_record_bytes,
             uint64_t record_room = std::numeric_limits<uint64_t>::max());

  char* data() { return buffer_.get() + begin_; }
  size_t size() const { return end_ - begin_; }
  // At least this many bytes after data() + size() may be read (their contents mean nothing).
  static constexpr size_t kPadding = 64;

  // Appends at least one byte, which may move data(); kTooLong when the record cap is reached.
  enum class Fill { kMore, kEnd, kTooLong };
  Fill fill();
  // Leaves the first `bytes`, which held `lines` line breaks. Views stay valid until fill().
  void consume(size_t bytes, uint64_t lines);

  // The next line without its break, UTF-8 checked; false at the end. An unfinished last line
  // counts.
  bool next_line(std::string_view& line);

  // '\n' (a '\r' before it belongs to the break) or '\r'. The first break in the file decides; the
  // other character is ordinary text from then on.
  char line_break();
  uint64_t line() const { return line_; }  // 1-based number of the line at data()
  const std::string& file() const { return file_; }
  uint64_t stored_bytes() const { return source_->stored_bytes(); }
  size_t max_record_bytes() const { return max_record_bytes_; }

 private:
  void make_room();
  void refuse_other_encodings();
  char find_line_break();

  std::unique_ptr<ByteSource> source_;
  std::string file_;
  size_t max_record_bytes_;
  uint64_t record_room_;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_ = 0, begin_ = 0, end_ = 0;
  uint64_t line_ = 1;
  char line_break_ = 0;  // 0: not known yet
};

// Fails (kInput) with line and byte in the line where `record`, which begins at line `line` behind
// `before` bytes of it, is not UTF-8. Overlong forms, surrogates and code points over U+10FFFF are
// not UTF-8.
void check_utf8(std::string_view record, char line_break, uint64_t line, const std::string& file,
                uint64_t before = 0);

}  // namespace snug

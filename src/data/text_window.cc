#include "data/text_window.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace snug {
namespace {

constexpr size_t kInitialCapacity = 256 << 10;

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Length of the well-formed sequence that begins `text` (Unicode table 3-7), 0 when there is none.
size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t{0}; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (second < low || second > high) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (size_t i = 2; i < length; ++i) {
    if (!is_continuation(byte(i))) return 0;
  }
  return length;
}

size_t first_invalid(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_sequence(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

// Without a mark, UTF-16 of Western text shows as a zero in every other byte.
bool every_other_byte_is_zero(std::string_view text) {
  const size_t pairs = std::min<size_t>(text.size(), 64) / 2;
  size_t even = 0, odd = 0;
  for (size_t i = 0; i < pairs; ++i) {
    even += text[2 * i] == 0;
    odd += text[2 * i + 1] == 0;
  }
  return pairs >= 4 && (even == pairs) != (odd == pairs);
}

}  // namespace

void check_utf8(std::string_view record, char line_break, uint64_t line, const std::string& file,
                uint64_t before) {
  if (simdjson::validate_utf8(record.data(), record.size())) return;
  const size_t bad = first_invalid(record);
  const std::string_view good = record.substr(0, bad);
  const uint64_t breaks = uint64_t(std::count(good.begin(), good.end(), line_break));
  const uint64_t byte = breaks == 0 ? before + bad + 1 : bad - good.rfind(line_break);
  fail(ErrorKind::kInput,
       "{}: line {}, byte {}: not UTF-8 (0x{:02x}); convert the file to UTF-8, for example with "
       "iconv -f latin1 -t utf-8",
       file, line + breaks, byte, uint8_t(record[bad]));
}

TextWindow::TextWindow(std::unique_ptr<ByteSource> source, std::string file,
                       size_t max_record_bytes, uint64_t record_room)
    : source_(std::move(source)),
      file_(std::move(file)),
      max_record_bytes_(max_record_bytes),
      record_room_(record_room) {
  make_room();
  while (size() < 64 && fill() == Fill::kMore) {
  }
  refuse_other_encodings();
  if (std::string_view(data(), size()).starts_with("\xEF\xBB\xBF")) begin_ += 3;
}

void TextWindow::refuse_other_encodings() {
  const std::string_view head(data(), size());
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF") ||
      every_other_byte_is_zero(head)) {
    fail(ErrorKind::kInput,
         "{}: looks like UTF-16; convert it to UTF-8, for example with "
         "iconv -f utf-16 -t utf-8",
         file_);
  }
  if (head.starts_with("\x1F\x8B") || head.starts_with("\x28\xB5\x2F\xFD")) {
    fail(ErrorKind::kInput, "{}: looks compressed; its name should end in {}", file_,
         head[0] == '\x1F' ? ".gz" : ".zst");
  }
}

// Moves the unread bytes to the front of a buffer that has free space after them.
void TextWindow::make_room() {
  const size_t unread = size();
  size_t capacity = std::max(capacity_, kInitialCapacity);
  if (unread > capacity / 2) capacity *= 2;
  if (unread < kInitialCapacity / 2) capacity = kInitialCapacity;
  if (capacity == capacity_) {
    std::memmove(buffer_.get(), data(), unread);
  } else {
    auto larger = std::make_unique_for_overwrite<char[]>(capacity + kPadding);
    std::memset(larger.get() + capacity, 0, kPadding);
    if (unread > 0) std::memcpy(larger.get(), data(), unread);
    buffer_ = std::move(larger);
    capacity_ = capacity;
  }
  begin_ = 0;
  end_ = unread;
}

TextWindow::Fill TextWindow::fill() {
  if (size() >= max_record_bytes_) return Fill::kTooLong;
  if (size() >= record_room_) {
    throw Error(ErrorKind::kBudget,
                fmt::format("{}: line {}: has more than {} bytes, for which there is no room in "
                            "what is left of the memory",
                            file_, line_, record_room_),
                "a long text takes several times its size while it passes: give more with "
                "--memory, or leave it out");
  }
  if (end_ == capacity_) make_room();
  const size_t count = source_->read(buffer_.get() + end_, capacity_ - end_);
  end_ += count;
  return count > 0 ? Fill::kMore : Fill::kEnd;
}

void TextWindow::consume(size_t bytes, uint64_t lines) {
  SNUG_CHECK(bytes <= size());
  begin_ += bytes;
  line_ += lines;
}

char TextWindow::find_line_break() {
  size_t at = 0;
  for (;;) {
    while (at < size() && data()[at] != '\n' && data()[at] != '\r') ++at;
    if (at < size() && data()[at] == '\n') return '\n';
    if (at + 1 < size()) return data()[at + 1] == '\n' ? '\n' : '\r';
    const Fill filled = fill();
    if (filled == Fill::kEnd) return at < size() ? '\r' : '\n';
    if (filled == Fill::kTooLong) return '\n';  // whoever reads the record words the error
  }
}

char TextWindow::line_break() {
  if (line_break_ == 0) line_break_ = find_line_break();
  return line_break_;
}

bool TextWindow::next_line(std::string_view& line) {
  const char terminator = line_break();
  size_t searched = 0;
  for (;;) {
    const void* found = std::memchr(data() + searched, terminator, size() - searched);
    if (found != nullptr) {
      line = {data(), size_t(static_cast<const char*>(found) - data())};
      break;
    }
    searched = size();
    const Fill filled = fill();
    if (filled == Fill::kEnd && size() == 0) return false;
    if (filled != Fill::kMore) {
      line = {data(), size()};
      break;
    }
  }
  if (line.size() >= max_record_bytes_) {
    fail(ErrorKind::kInput, "{}: line {}: not finished after {} bytes, the most a line may have",
         file_, line_, max_record_bytes_);
  }
  consume(std::min(line.size() + 1, size()), 1);
  check_utf8(line, terminator, line_ - 1, file_);
  if (terminator == '\n' && line.ends_with('\r')) line.remove_suffix(1);
  return true;
}

}  // namespace snug

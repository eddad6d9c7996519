// What the tests of this folder share: a tokenizer small enough to check by eye, folders that
// vanish, rows one by one, errors as text, and bytes that come slowly or compressed.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/row_reader.h"
#include "data/row_window.h"
#include "text/tokenizer.h"

namespace snug {

// Words by white space, hashed into [3, vocab), with offsets that count bytes; 1 opens a text, 2
// closes each. Without specials an empty text has no tokens.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(int32_t vocab = 1000, bool specials = true)
      : vocab_(vocab), specials_(specials) {}

  void encode(std::string_view text, std::optional<std::string_view> pair,
              const EncodeOptions& options, Encoding& out) const override {
    out.clear();
    if (specials_) add(1, 0, out);
    words(text, 0, out);
    if (specials_) add(2, 0, out);
    if (pair) {
      words(*pair, 1, out);
      if (specials_) add(2, 1, out);
    }
    if (text.find("snug-explodes") != text.npos) fail(ErrorKind::kInput, "tokenizer: {}", text);
    if (options.max_length == 0 || out.ids.size() <= options.max_length) return;
    out.ids.resize(options.max_length);
    out.type_ids.resize(options.max_length);
    out.offsets.resize(options.max_length);
  }
  // Cut anywhere, without specials of their own.
  std::vector<Encoding> encode_windows(std::string_view text, std::optional<std::string_view> pair,
                                       size_t, const EncodeOptions& options) const override {
    Encoding whole;
    encode(text, pair, {}, whole);
    std::vector<Encoding> windows;
    for (size_t at = 0; at < whole.ids.size(); at += options.max_length) {
      Encoding& window = windows.emplace_back();
      for (size_t i = at; i < std::min(at + options.max_length, whole.ids.size()); ++i) {
        add(whole.ids[i], whole.type_ids[i], window, whole.offsets[i]);
      }
    }
    return windows;
  }
  int32_t vocab_size() const override { return vocab_; }
  const SpecialIds& special_ids() const override { return special_ids_; }
  std::string_view token(int32_t) const override { return ""; }
  int32_t find(std::string_view) const override { return -1; }
  size_t model_max_length() const override { return 0; }
  uint64_t fingerprint() const override { return uint64_t(vocab_) * 2 + specials_; }
  void save(const std::filesystem::path&) const override {}

 private:
  static void add(int32_t id, int32_t type, Encoding& out, Span span = {}) {
    out.ids.push_back(id);
    out.type_ids.push_back(type);
    out.offsets.push_back(span);
  }
  void words(std::string_view text, int32_t type, Encoding& out) const {
    for (size_t at = 0;;) {
      const size_t begin = text.find_first_not_of(" \n", at);
      if (begin == text.npos) return;
      at = std::min(text.find_first_of(" \n", begin), text.size());
      const size_t hash = std::hash<std::string_view>{}(text.substr(begin, at - begin));
      add(3 + int32_t(hash % size_t(vocab_ - 3)), type, out, {uint32_t(begin), uint32_t(at)});
    }
  }

  int32_t vocab_;
  bool specials_;
  SpecialIds special_ids_;
};

// Rows of a dataset in any order.
class RowByRow {
 public:
  explicit RowByRow(const Dataset& data) : data_(data), window_(data, RowWindow::limits(data, 1)) {}
  const Example& read(uint64_t row) {  // valid until the next call
    window_.start(EpochOrder::of_files(data_), {.first = row, .count = 1});
    window_.work(window_.effort_left());
    window_.read(0, example_);
    EXPECT_EQ(window_.length(0), example_.ids.size());
    return example_;
  }

 private:
  const Dataset& data_;
  RowWindow window_;
  Example example_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "snug-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view contents) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(contents.data(), std::streamsize(contents.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// "KIND: what()" of the Error that `action` throws, or "no error".
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::to_string(int(error.kind())) + ": " + error.what();
  }
  return "no error";
}

size_t allocated_bytes();  // by operator new since the program began

struct OwnedRow {
  std::string text;
  std::optional<std::string> text_pair, label;
  uint64_t line = 0;
  bool operator==(const OwnedRow&) const = default;
};

inline std::vector<OwnedRow> all_rows(RowReader& reader) {
  std::vector<OwnedRow> rows;
  for (Row row; reader.next(row);) {
    rows.push_back({std::string(row.text), std::nullopt, std::nullopt, row.line});
    if (row.text_pair) rows.back().text_pair = *row.text_pair;
    if (row.label) rows.back().label = *row.label;
  }
  return rows;
}

inline std::vector<OwnedRow> parse_rows(std::string_view bytes, const std::string& name,
                                        const RowReaderOptions& options = {}) {
  return all_rows(*open_rows(memory_source(bytes), name, options));
}

// Hands out at most `chunk` bytes at a time.
class SlowSource final : public ByteSource {
 public:
  SlowSource(std::string_view bytes, size_t chunk) : rest_(bytes), chunk_(chunk) {}
  size_t read(char* destination, size_t bytes) override {
    const size_t count = std::min({bytes, chunk_, rest_.size()});
    std::copy_n(rest_.data(), count, destination);
    rest_.remove_prefix(count);
    return count;
  }
  uint64_t stored_bytes() const override { return 0; }

 private:
  std::string_view rest_;
  size_t chunk_;
};

inline std::string gzipped(std::string_view text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = uInt(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd_compressed(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// Folder of real data beside the checkout (or where SNUG_SHARED says), or empty.
inline std::filesystem::path shared_data() {
  const char* shared = ::getenv("SNUG_SHARED");
  const std::filesystem::path folder =
      std::filesystem::path(shared ? shared : SNUG_SOURCE_DIR "/../shared") / "data";
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

}  // namespace snug

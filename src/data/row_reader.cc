#include "data/row_reader.h"

#include "core/error.h"
#include "data/readers.h"

namespace snug {
namespace {

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  }
  return text;
}

// Removes `suffix` from `name` where it is there.
bool strip(std::string& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  name.resize(name.size() - suffix.size());
  return true;
}

// `format` is a name whose extensions say how the bytes are stored and laid out.
std::unique_ptr<RowReader> open_as(std::unique_ptr<ByteSource> bytes, std::string format,
                                   const std::string& name, const RowReaderOptions& options) {
  format = lower(std::move(format));
  if (strip(format, ".gz")) {
    bytes = gzip_source(std::move(bytes), name);
  } else if (strip(format, ".zst")) {
    bytes = zstd_source(std::move(bytes), name);
  }
  TextWindow window(std::move(bytes), name, options.max_record_bytes);
  if (format.ends_with(".csv")) return csv_reader(std::move(window), options);
  if (format.ends_with(".tsv")) return tsv_reader(std::move(window), options);
  if (format.ends_with(".jsonl") || format.ends_with(".json")) {
    return jsonl_reader(std::move(window), options);
  }
  if (format.ends_with(".txt")) return text_reader(std::move(window), options);
  fail(ErrorKind::kInput,
       "{}: unknown format; expected a name in .csv, .tsv, .jsonl or .txt, optionally .gz or .zst",
       name);
}

}  // namespace

uint64_t reading_bytes(const std::filesystem::path& path) {
  // The window and the chunks that fill it; zstd's window; a JSON parser for lines of 64 KiB.
  constexpr uint64_t kReading = (256 + 64) << 10, kDecoder = 9 << 20, kParsing = 1 << 20;
  std::string format = lower(path.filename().string());
  strip(format, ".gz");
  const bool zstd = strip(format, ".zst"), json = format.ends_with(".jsonl") || format.ends_with(".json");
  return kReading + (zstd ? kDecoder : 0) + (json ? kParsing : 0);
}

std::unique_ptr<RowReader> open_rows(std::unique_ptr<ByteSource> stored, const std::string& name,
                                     const RowReaderOptions& options) {
  return open_as(std::move(stored), name, name, options);
}

std::unique_ptr<RowReader> open_rows(const std::filesystem::path& path,
                                     const RowReaderOptions& options) {
  if (path == "-") {
    return open_as(stdin_source(), "." + options.stdin_format, "standard input", options);
  }
  return open_rows(file_source(path), path.string(), options);
}

}  // namespace snug

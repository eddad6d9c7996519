#include "data/row_reader.h"

#include <algorithm>
#include <span>

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

using OpenFormat = std::unique_ptr<RowReader> (*)(TextWindow window,
                                                  const RowReaderOptions& options);

struct Format {
  std::string_view extension;
  OpenFormat open;
};

// Without answers: the columns of question and context.
std::unique_ptr<RowReader> question_table(TextWindow window, const RowReaderOptions& options,
                                          OpenFormat open) {
  if (options.labels == LabelNeed::kRequired) {
    fail(ErrorKind::kInput, "{}: tables hold no answers; expected SQuAD's .json, or .jsonl",
         window.file());
  }
  RowReaderOptions unlabelled = options;
  unlabelled.labels = LabelNeed::kIgnored;
  return open(std::move(window), unlabelled);
}
std::unique_ptr<RowReader> question_csv(TextWindow window, const RowReaderOptions& options) {
  return question_table(std::move(window), options, csv_reader);
}
std::unique_ptr<RowReader> question_tsv(TextWindow window, const RowReaderOptions& options) {
  return question_table(std::move(window), options, tsv_reader);
}

constexpr Format kTextFormats[] = {{".csv", csv_reader},
                                   {".tsv", tsv_reader},
                                   {".jsonl", jsonl_reader},
                                   {".json", jsonl_reader},
                                   {".txt", text_reader}};
constexpr Format kWordFormats[] = {{".conll", conll_reader},     {".bio", conll_reader},
                                   {".iob", conll_reader},       {".txt", conll_reader},
                                   {".tsv", conll_reader},       {".jsonl", jsonl_words_reader},
                                   {".json", jsonl_words_reader}};
constexpr Format kQuestionFormats[] = {{".json", squad_reader},
                                       {".jsonl", jsonl_questions_reader},
                                       {".csv", question_csv},
                                       {".tsv", question_tsv}};

std::span<const Format> formats_of(RowKind kind) {
  if (kind == RowKind::kWords) return kWordFormats;
  if (kind == RowKind::kQuestions) return kQuestionFormats;
  return kTextFormats;
}

[[noreturn]] void refuse_format(RowKind kind, const std::string& name) {
  std::string accepted;
  for (const Format& format : formats_of(kind)) {
    accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", format.extension);
  }
  fail(ErrorKind::kInput,
       "{}: unknown format{}; expected a name in one of {}, optionally .gz or .zst", name,
       kind == RowKind::kWords       ? " for words with tags"
       : kind == RowKind::kQuestions ? " for questions"
                                     : "",
       accepted);
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
  const auto formats = formats_of(options.kind);
  const auto found = std::ranges::find_if(
      formats, [&](const Format& one) { return format.ends_with(one.extension); });
  if (found == formats.end()) refuse_format(options.kind, name);
  return found->open(
      TextWindow(std::move(bytes), name, options.max_record_bytes, options.record_room), options);
}

}  // namespace

uint64_t reading_bytes(const std::filesystem::path& path, uint64_t longest_record_bytes) {
  // The window and the chunks that fill it; zstd's window; a JSON parser for lines of 64 KiB.
  constexpr uint64_t kReading = (256 + 64) << 10, kDecoder = 9 << 20, kParsing = 1 << 20;
  std::string format = lower(path.filename().string());
  strip(format, ".gz");
  const bool zstd = strip(format, ".zst"),
             json = format.ends_with(".jsonl") || format.ends_with(".json");
  const uint64_t record =
      longest_record_bytes > kUsualTextBytes ? longest_record_bytes * (json ? 20 : 5) : 0;
  return kReading + (zstd ? kDecoder : 0) + (json ? kParsing : 0) + record;
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

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/commands.h"
#include "core/error.h"
#include "core/json.h"
#include "core/progress.h"
#include "data/row_reader.h"
#include "text/tokenizer.h"

namespace snug {
namespace {

struct RowFlags {
  CommonOptions common;
  std::string file;
  bool json = false;

  std::unique_ptr<RowReader> open(LabelNeed labels) const {
    RowReaderOptions options;
    options.columns = {common.text_column, common.text_pair_column, common.label_column};
    options.labels = labels;
    options.has_header = common.header;
    return open_rows(file, options);
  }
};

void print_encoding(const Encoding& encoding) {
  static fmt::memory_buffer line;
  line.clear();
  const auto out = std::back_inserter(line);
  fmt::format_to(out, "{{\"ids\": [{}], \"offsets\": [", fmt::join(encoding.ids, ", "));
  for (size_t i = 0; i < encoding.offsets.size(); ++i) {
    fmt::format_to(out, "{}[{}, {}]", i > 0 ? ", " : "", encoding.offsets[i].begin, encoding.offsets[i].end);
  }
  fmt::format_to(out, "]");
  // Those of a single text are all 0, but where its family marks special tokens by them.
  if (std::ranges::any_of(encoding.type_ids, [](int32_t type) { return type != 0; }))
    fmt::format_to(out, ", \"type_ids\": [{}]", fmt::join(encoding.type_ids, ", "));
  fmt::format_to(out, "}}\n");
  std::fwrite(line.data(), 1, line.size(), stdout);
}

struct TokenizeFlags : RowFlags {
  EncodeOptions encode{.with_offsets = true};
  std::optional<std::string> text, text_pair;
  std::optional<size_t> stride;
};

void tokenize(const TokenizeFlags& flags) {
  const bool given = flags.text.has_value();
  if (given == !flags.file.empty()) fail(ErrorKind::kUsage, "tokenize takes either --text or --input");
  if (flags.text_pair && !given) fail(ErrorKind::kUsage, "--text-pair goes with --text; files have --text-pair-column");
  if (flags.stride && flags.encode.max_length == 0) fail(ErrorKind::kUsage, "--stride needs --max-length, the size of a window");
  const auto tokenizer = load_tokenizer(flags.common.model);
  Encoding encoding;
  const auto print = [&](std::string_view text, std::optional<std::string_view> pair) {
    if (flags.stride) {
      for (const Encoding& window : tokenizer->encode_windows(text, pair, *flags.stride, flags.encode)) print_encoding(window);
    } else {
      tokenizer->encode(text, pair, flags.encode, encoding);
      print_encoding(encoding);
    }
  };
  if (given) return print(*flags.text, flags.text_pair);
  const auto reader = flags.open(LabelNeed::kIgnored);
  for (Row row; reader->next(row);) print(row.text, row.text_pair);
}

void add_tokenize(CLI::App& app) {
  const auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "token ids of texts, as JSON lines {\"ids\": [...], \"offsets\": [...]}");
  command->footer(
      "Tokenizers read: tokenizer.json (WordPiece, byte-level BPE, Unigram); vocab.txt; vocab.json and merges.txt; SentencePiece\n"
      "models (spiece.model, sentencepiece.bpe.model, any .model) of ALBERT, XLNet, XLM-RoBERTa and T5, or of no family.\n"
      "Offsets count characters of the text. type_ids are printed where they are not all 0.");
  add_model_flag(*command, flags->common);
  command->add_option("--text", flags->text, "one text");
  command->add_option(spellings("--text-pair"), flags->text_pair, "the second text of a pair, with --text");
  command->add_option("--input", flags->file, "texts: .jsonl, .csv, .tsv, .txt; - is standard input");
  command->add_option(spellings("--max-length,--max-seq-length"), flags->encode.max_length,
                      "longest text in tokens, specials included; 0: no limit")->capture_default_str();
  command->add_option(spellings("--stride,--doc-stride"), flags->stride,
                      "windows of --max-length tokens, one line each, that share so many; of a pair the second text is cut");
  command->add_flag_callback(spellings("--no-special-tokens"), [flags] { flags->encode.special_tokens = false; },
                             "leave [CLS] and [SEP] out");
  command->add_flag_callback("--json", [] {}, "accepted; the output is always JSON lines");
  add_column_flags(*command, flags->common, false);
  command->callback([flags] { tokenize(*flags); });
}

struct DataReport {
  uint64_t rows = 0, unlabelled = 0, tokens = 0;
  std::map<std::string, uint64_t> labels;
  std::map<uint32_t, uint64_t> lengths;  // tokens -> rows

  uint32_t percentile(double share) const {
    uint64_t seen = 0;
    for (const auto& [length, count] : lengths) {
      seen += count;
      if (double(seen) >= share * double(rows)) return length;
    }
    return 0;
  }
};

constexpr size_t kMaxLabelsCounted = 100'000;

DataReport examine(const RowFlags& flags) {
  DataReport report;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!flags.common.model.empty()) tokenizer = load_tokenizer(flags.common.model);
  const auto reader = flags.open(LabelNeed::kOptional);
  Progress progress("reading " + flags.file, 0, "rows");
  Encoding encoding;
  for (Row row; reader->next(row); progress.update(++report.rows)) {
    if (!row.label) ++report.unlabelled;
    else if (report.labels.size() < kMaxLabelsCounted) ++report.labels[std::string(*row.label)];
    if (!tokenizer) continue;
    tokenizer->encode(row.text, row.text_pair, {}, encoding);
    report.tokens += encoding.ids.size();
    ++report.lengths[uint32_t(encoding.ids.size())];
  }
  return report;
}

void print(const DataReport& report, bool with_lengths) {
  std::puts(fmt::format("rows        {}", report.rows).c_str());
  if (report.unlabelled > 0) std::puts(fmt::format("unlabelled  {}", report.unlabelled).c_str());
  if (!report.labels.empty()) std::puts(fmt::format("labels      {}", report.labels.size()).c_str());
  size_t shown = 0;
  for (const auto& [label, count] : report.labels) {
    if (++shown > 20) break;
    std::puts(fmt::format("  {:<24}{:>10}", label, count).c_str());
  }
  if (!with_lengths || report.rows == 0) return;
  std::puts(fmt::format("tokens      {} (mean {:.1f}, half of the rows up to {}, 95 % up to {}, 99 % up to {}, longest {})",
                        report.tokens, double(report.tokens) / double(report.rows), report.percentile(0.5),
                        report.percentile(0.95), report.percentile(0.99), report.percentile(1.0))
                .c_str());
}

void print_json(const DataReport& report, bool with_lengths) {
  OrderedJson json = {{"rows", report.rows}, {"unlabelled", report.unlabelled}, {"labels", report.labels}};
  if (with_lengths && report.rows > 0) {
    json["tokens"] = {{"total", report.tokens},
                      {"mean", double(report.tokens) / double(report.rows)},
                      {"p50", report.percentile(0.5)},
                      {"p95", report.percentile(0.95)},
                      {"p99", report.percentile(0.99)},
                      {"longest", report.percentile(1.0)}};
  }
  std::puts(json.dump(2).c_str());
}

void add_data(CLI::App& app) {
  const auto flags = std::make_shared<RowFlags>();
  CLI::App* command = app.add_subcommand("data", "rows, labels and token lengths of a data file, or what is wrong with it");
  command->add_option("file", flags->file, ".csv, .tsv, .jsonl, .txt, also .gz or .zst")->required();
  command->add_option("--model", flags->common.model, "model folder, to measure lengths in tokens");
  add_column_flags(*command, flags->common, true);
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] {
    const DataReport report = examine(*flags);
    (flags->json ? print_json : print)(report, !flags->common.model.empty());
  });
}

}  // namespace

void add_text_commands(CLI::App& app) {
  add_tokenize(app);
  add_data(app);
}

}  // namespace snug

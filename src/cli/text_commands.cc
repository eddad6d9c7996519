#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "cli/commands.h"
#include "core/error.h"
#include "data/data_files.h"
#include "data/row_reader.h"
#include "text/tokenizer.h"
#include "train/data_report.h"
#include "train/platform.h"
#include "train/task.h"

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
    fmt::format_to(out, "{}[{}, {}]", i > 0 ? ", " : "", encoding.offsets[i].begin,
                   encoding.offsets[i].end);
  }
  fmt::format_to(out, "]");
  // Those of a single text are all 0, but where its family marks special tokens by them.
  if (std::ranges::any_of(encoding.type_ids, [](int32_t type) { return type != 0; })) {
    fmt::format_to(out, ", \"type_ids\": [{}]", fmt::join(encoding.type_ids, ", "));
  }
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
  if (given == !flags.file.empty()) {
    fail(ErrorKind::kUsage, "tokenize takes either --text or --input");
  }
  if (flags.text_pair && !given) {
    fail(ErrorKind::kUsage, "--text-pair goes with --text; files have --text-pair-column");
  }
  if (flags.stride && flags.encode.max_length == 0) {
    fail(ErrorKind::kUsage, "--stride needs --max-length, the size of a window");
  }
  const auto tokenizer = load_tokenizer(flags.common.model);
  Encoding encoding;
  const auto print = [&](std::string_view text, std::optional<std::string_view> pair) {
    if (flags.stride) {
      for (const Encoding& window :
           tokenizer->encode_windows(text, pair, *flags.stride, flags.encode)) {
        print_encoding(window);
      }
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
  CLI::App* command = app.add_subcommand(
      "tokenize", "token ids of texts, as JSON lines {\"ids\": [...], \"offsets\": [...]}");
  command->footer(
      "Tokenizers read: tokenizer.json (WordPiece, byte-level BPE, Unigram); vocab.txt; vocab.json "
      "and merges.txt; SentencePiece\n"
      "models (spiece.model, sentencepiece.bpe.model, any .model) of ALBERT, XLNet, XLM-RoBERTa "
      "and T5, or of no family.\n"
      "Offsets count characters of the text. type_ids are printed where they are not all 0.");
  add_model_flag(*command, flags->common);
  command->add_option("--text", flags->text, "one text");
  command->add_option(spellings("--text-pair"), flags->text_pair,
                      "the second text of a pair, with --text");
  command->add_option("--input", flags->file,
                      "texts: .jsonl, .csv, .tsv, .txt; - is standard input");
  command
      ->add_option(spellings("--max-length,--max-seq-length"), flags->encode.max_length,
                   "longest text in tokens, specials included; 0: no limit")
      ->capture_default_str();
  command->add_option(spellings("--stride,--doc-stride"), flags->stride,
                      "windows of --max-length tokens, one line each, that share so many; of a "
                      "pair the second text is cut");
  command->add_flag_callback(
      spellings("--no-special-tokens"), [flags] { flags->encode.special_tokens = false; },
      "leave [CLS] and [SEP] out");
  command->add_flag_callback(
      "--json", [] {}, "accepted; the output is always JSON lines");
  add_column_flags(*command, flags->common, false);
  command->callback([flags] { tokenize(*flags); });
}

struct DataFlags {
  CommonOptions common;
  std::string files, validation, task;
  bool json = false;

  DataReportOptions options() const {
    constexpr std::array<std::pair<std::string_view, Labelling>, 5> kTasks = {
        {{"classify", Labelling::kClass},
         {"multi-label", Labelling::kClasses},
         {"regress", Labelling::kNumber},
         {"tag", Labelling::kTags},
         {"qa", Labelling::kAnswer}}};
    DataReportOptions result;
    result.files = find_data_files("FILE", files).files;
    if (!validation.empty()) result.validation = find_data_files("--validation", validation).files;
    result.labelling =
        is_tagged_file(result.files[0].string()) ? Labelling::kTags : Labelling::kClass;
    if (!task.empty()) {
      result.labelling =
          std::ranges::find(kTasks, task, &std::pair<std::string_view, Labelling>::first)->second;
    }
    result.columns = {common.text_column, common.text_pair_column, common.label_column};
    result.has_header = common.header;
    result.label_separator = common.label_separator;
    result.max_length = size_t(std::max<int64_t>(0, common.max_length));
    result.scratch = cache_folder(common);
    return result;
  }
};

void add_data(CLI::App& app) {
  const auto flags = std::make_shared<DataFlags>();
  CLI::App* command = app.add_subcommand(
      "data",
      "rows, labels, token lengths and duplicates in data files, and what is wrong with them");
  command
      ->add_option_function<std::vector<std::string>>(
          "file",
          [flags](const std::vector<std::string>& given) {
            flags->files = CLI::detail::join(given, ",");
          },
          "data in the formats of snug train, one or several files")
      ->required();
  add_files_option(*command, spellings("--validation,--validation-file"), flags->validation,
                   "compare with this data: texts that are in both");
  command
      ->add_option(
          "--task", flags->task,
          "classify, multi-label, regress, tag, qa: what the rows are [classify; .conll: tag]")
      ->check(CLI::IsMember({"classify", "multi-label", "regress", "tag", "qa"}));
  command->add_option(spellings("--model,--model-name-or-path"), flags->common.model,
                      "model folder, to measure lengths in tokens");
  command
      ->add_option(spellings("--max-length,--max-seq-length"), flags->common.max_length,
                   "count the rows that are longer; 0: none")
      ->capture_default_str();
  add_column_flags(*command, flags->common, true);
  command->add_option(spellings("--cache-dir"), flags->common.cache_dir,
                      "where hashes are sorted that have no room in memory [~/.cache/snug]");
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] {
    DataReportOptions options = flags->options();
    std::unique_ptr<Tokenizer> tokenizer;
    if (!flags->common.model.empty()) tokenizer = load_tokenizer(flags->common.model);
    options.tokenizer = tokenizer.get();
    const DataReport report = examine_data(options);
    std::fputs((flags->json ? report.to_json() + "\n" : report.to_text()).c_str(), stdout);
  });
}

}  // namespace

void add_text_commands(CLI::App& app) {
  add_tokenize(app);
  add_data(app);
}

}  // namespace snug

#include "cli/commands.h"
#include "cli/size.h"
#include "core/error.h"

namespace snug {

std::string spellings(const std::string& kebab) {
  std::string snake = kebab;
  for (size_t i = 0; i < snake.size(); ++i) {
    // Keep the two dashes that begin each spelling.
    if (snake[i] == '-' && i > 0 && std::isalnum(static_cast<unsigned char>(snake[i - 1]))) {
      snake[i] = '_';
    }
  }
  return snake == kebab ? kebab : kebab + "," + snake;
}

void add_model_flag(CLI::App& command, CommonOptions& options) {
  command
      .add_option(spellings("--model,--model-name-or-path"), options.model,
                  "Hugging Face model folder")
      ->required();
}

void add_memory_flags(CLI::App& command, CommonOptions& options) {
  command.add_option_function<std::string>(
      spellings("--memory"),
      [&options](const std::string& text) { options.memory_bytes = parse_size(text); },
      "most memory the whole process may occupy: 8GiB, 8GB, 512MiB, bytes [what the machine can "
      "give]");
  command
      .add_option("--device", options.device,
                  "cpu, cuda, cuda:N; auto: a GPU where this snug can use one")
      ->capture_default_str();
  command
      .add_option("--precision", options.precision,
                  "auto (bf16 on GPUs that have it, else fp32), fp32, bf16, fp16")
      ->capture_default_str();
  for (const char* name : {"bf16", "fp16"}) {
    command.add_flag_callback(
        std::string("--") + name, [&options, name] { options.precision = name; },
        std::string("the same as --precision ") + name);
  }
  command.add_flag("--tf32", options.tf32, "GPU: fp32 products may round their factors to TF32");
  command.add_option("--threads", options.threads, "processor threads; 0: all")
      ->check([](const std::string& text) {
        return text.starts_with('-') ? text + " is less than 0" : "";
      })
      ->capture_default_str();
}

void add_column_flags(CLI::App& command, CommonOptions& options, bool with_label) {
  command.add_option(spellings("--text-column"), options.text_column,
                     "column of the text, by name or #number [usual names]");
  command.add_option(spellings("--text-pair-column"), options.text_pair_column,
                     "column of the second text; - for none [usual names]");
  if (with_label) {
    command.add_option(spellings("--label-column"), options.label_column,
                       "column of the label [usual names]");
  }
  if (with_label) {
    command
        .add_option(spellings("--label-separator"), options.label_separator,
                    "multi-label: what stands between the labels of a text")
        ->capture_default_str();
  }
  command.add_flag_callback(
      spellings("--no-header"), [&options] { options.header = false; },
      "CSV and TSV: the first line is data; columns are #1, #2, ...");
}

void add_long_text_flags(CLI::App& command, CommonOptions& options) {
  command
      .add_option(spellings("--max-length,--max-seq-length"), options.max_length,
                  "longest text in tokens, see --long-texts; 0: as many as the model has positions")
      ->capture_default_str();
  command.add_option(spellings("--long-texts"), options.long_texts,
                     "of texts above --max-length keep the head, the tail, both ends (middle "
                     "goes), or all in windows "
                     "[head; windows of tag and qa]");
  command.add_option(
      spellings("--stride,--doc-stride"), options.stride,
      "tokens that a window shares with the one before it [a third of --max-length]");
}

void add_bad_rows_flag(CLI::App& command, CommonOptions& options) {
  command.add_flag(spellings("--skip-bad-rows"), options.skip_bad_rows,
                   "leave rows that are wrong out instead of refusing the file; their number is "
                   "said, train also lists them");
}

CLI::Option* add_files_option(CLI::App& command, const std::string& names, std::string& list,
                              const std::string& description) {
  return command
      .add_option_function<std::vector<std::string>>(
          names,
          [&list](const std::vector<std::string>& given) { list = CLI::detail::join(given, ","); },
          description)
      ->type_name("FILE,...")
      ->allow_extra_args(false);
}

}  // namespace snug

#include "cli/commands.h"
#include "cli/size.h"
#include "core/error.h"

namespace snug {

std::string spellings(const std::string& kebab) {
  std::string snake = kebab;
  for (size_t i = 0; i < snake.size(); ++i) {
    // Keep the two dashes that begin each spelling.
    if (snake[i] == '-' && i > 0 && std::isalnum(static_cast<unsigned char>(snake[i - 1]))) snake[i] = '_';
  }
  return snake == kebab ? kebab : kebab + "," + snake;
}

void add_model_flag(CLI::App& command, CommonOptions& options) {
  command.add_option(spellings("--model,--model-name-or-path"), options.model, "Hugging Face model folder")->required();
}

void add_memory_flags(CLI::App& command, CommonOptions& options) {
  command.add_option_function<std::string>(
      spellings("--memory"), [&options](const std::string& text) { options.memory_bytes = parse_size(text); },
      "most memory the whole process may occupy: 8GiB, 8GB, 512MiB, bytes [what the machine can give]");
  command.add_option("--device", options.device, "cpu (this version has no other)")->capture_default_str();
  command.add_option("--threads", options.threads, "processor threads; 0: all")->capture_default_str();
  command.add_option(spellings("--max-length,--max-seq-length"), options.max_length,
                     "longest text in tokens, the rest is cut off; 0: as many as the model has positions")
      ->capture_default_str();
}

void add_column_flags(CLI::App& command, CommonOptions& options, bool with_label) {
  command.add_option(spellings("--text-column"), options.text_column, "column of the text, by name or #number [usual names]");
  command.add_option(spellings("--text-pair-column"), options.text_pair_column,
                     "column of the second text; - for none [usual names]");
  if (with_label) {
    command.add_option(spellings("--label-column"), options.label_column, "column of the label [usual names]");
  }
  command.add_flag_callback(spellings("--no-header"), [&options] { options.header = false; },
                            "CSV and TSV: the first line is data; columns are #1, #2, ...");
}

}  // namespace snug

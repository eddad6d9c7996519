// One function per group of subcommands: it declares their flags and what they run. Nothing else
// happens here.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "snug/snug.h"

namespace snug {

void add_training_commands(CLI::App& app);   // plan, train
void add_inference_commands(CLI::App& app);  // eval, predict, embed, generate
void add_text_commands(CLI::App& app);       // tokenize, data
void add_model_commands(CLI::App& app);      // init, merge, quantize, inspect, doctor

// --learning-rate and --learning_rate alike; further spellings after the first, comma-separated.
std::string spellings(const std::string& kebab);

// Exit codes that are results rather than errors (a plan that does not fit).
void set_exit_code(int code);

void add_model_flag(CLI::App& command, CommonOptions& options);
void add_memory_flags(CLI::App& command, CommonOptions& options);
void add_long_text_flags(CLI::App& command, CommonOptions& options);
// Files as data_files.h has them; given several times, all count.
CLI::Option* add_files_option(CLI::App& command, const std::string& names, std::string& list,
                              const std::string& description);
void add_bad_rows_flag(CLI::App& command, CommonOptions& options);
void add_column_flags(CLI::App& command, CommonOptions& options, bool with_label);

}  // namespace snug

// How --help looks.
#pragma once

#include <CLI/CLI.hpp>

namespace snug {

// Flags in one spelling each, with their values, what they mean wrapped beside them, and their
// defaults.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* command, std::string name) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

// The names of an option without --snake_case beside --kebab-case.
std::vector<std::string> shown_names(const CLI::Option& option);

// The help of flags that are added to the command from here on has this heading.
void begin_group(CLI::App& command, const char* heading);

}  // namespace snug

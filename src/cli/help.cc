#include "cli/help.h"

#include <algorithm>
#include <sstream>

namespace snug {
namespace {

constexpr size_t kColumn = 28, kWidth = 100;  // where meanings begin, and where lines end

// The name, and beside it or below the meaning.
std::string entry(const std::string& name, const std::string& meaning) {
  std::string lines = "  " + name;
  size_t column = lines.size();
  if (column + 2 > kColumn) {
    lines += '\n';
    column = 0;
  }
  lines.append(kColumn - column, ' ');
  column = kColumn;
  std::istringstream words(meaning);
  for (std::string word; words >> word;) {
    if (column > kColumn && column + 1 + word.size() > kWidth) {
      lines += '\n' + std::string(kColumn, ' ');
      column = kColumn;
    }
    if (column > kColumn) lines += ' ', ++column;
    lines += word;
    column += word.size();
  }
  return lines + '\n';
}

// What follows the name, with a blank before it; nothing for flags.
std::string value_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // with what it is checked against
  return type.empty() ? "" : " " + type.substr(0, type.find(':'));
}

}  // namespace

std::vector<std::string> shown_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    const std::string shown = "--" + name;
    if (name.find('_') == std::string::npos &&
        std::find(names.begin(), names.end(), shown) == names.end()) {
      names.push_back(shown);
    }
  }
  return names;
}

std::string HelpFormatter::make_usage(const CLI::App* command, std::string name) const {
  std::string line = "Usage: " + name;
  for (const CLI::Option* option : command->get_options()) {
    if (option->get_required() && option->nonpositional()) {
      line += " " + shown_names(*option).front() + value_of(*option);
    }
  }
  for (const CLI::Option* option : command->get_options()) {
    if (option->get_positional()) line += " " + make_option_usage(option);
  }
  line += command->get_subcommands({}).empty() ? " [flags]" : " COMMAND [flags]";
  return line + "\n\n";
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string name =
      is_positional ? option->get_name(true) : CLI::detail::join(shown_names(*option), ", ");
  if (!is_positional) name += value_of(*option);
  std::string meaning = option->get_description();
  const std::string usual = option->get_default_str();
  if (!usual.empty()) meaning += " [" + usual + "]";
  if (option->get_required()) meaning += " (required)";
  return entry(name, meaning);
}

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  std::string lines = group + ":\n";
  for (const CLI::Option* option : options) lines += make_option(option, is_positional);
  return is_positional ? lines + "\n" : lines;
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return entry(command->get_name(), command->get_description());
}

void begin_group(CLI::App& command, const char* heading) {
  command.option_defaults()->group(heading);
}

}  // namespace snug

#include "cli/usage_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/help.h"

namespace snug {
namespace {

// Letters to add, drop, change or swap with their neighbour until one word is the other.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before = std::exchange(last, now);
  }
  return last[b.size()];
}

// "did you mean ...? ", or nothing.
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : "did you mean " + near + "? ";
}

Error unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return Error(ErrorKind::kUsage, fmt::format("snug has no command '{}'", word),
               suggestion(word, names) + "snug --help lists the commands");
}

Error unknown_word(const CLI::App& command, const std::string& word, const std::string& hint) {
  if (word[0] != '-') {
    return Error(ErrorKind::kUsage,
                 fmt::format("snug {}: '{}' belongs to no flag", command.get_name(), word), hint);
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : shown_names(*option)) names.push_back(name);
  }
  std::string flag = word.substr(0, word.find('='));
  std::replace(flag.begin(), flag.end(), '_', '-');
  return Error(ErrorKind::kUsage, fmt::format("snug {} has no flag {}", command.get_name(), word),
               suggestion(flag, names) + hint);
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    const size_t off = distance(word, candidate);
    if (off < least) least = off, best = candidate;
  }
  return best;
}

Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  const std::vector<const CLI::App*> chosen =
      app.get_subcommands([&](const CLI::App* command) { return app.got_subcommand(command); });
  if (chosen.empty()) {
    if (!unknown.empty()) return unknown_command(app, unknown.front());
    return Error(ErrorKind::kUsage, "say what snug shall do", "snug --help lists the commands");
  }
  const CLI::App& command = *chosen.front();
  const std::string hint = fmt::format("snug {} --help explains its flags", command.get_name());
  // A flag that is not known leaves its value behind as well: the flag is the one to name.
  std::vector<std::string> left = command.remaining();
  std::stable_partition(left.begin(), left.end(),
                        [](const std::string& word) { return word.starts_with('-'); });
  if (!left.empty()) return unknown_word(command, left.front(), hint);
  return Error(ErrorKind::kUsage, fmt::format("snug {}: {}", command.get_name(), error.what()),
               hint);
}

}  // namespace snug

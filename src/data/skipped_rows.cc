#include "data/skipped_rows.h"

#include <charconv>

#include "core/json.h"

namespace snug {
namespace {

// Invalid bytes may stand in a message, where it quotes the file.
std::string json_line(const std::string& file, std::string_view message) {
  OrderedJson json = {{"file", file}};
  std::string_view rest = message;
  if (rest.starts_with(file)) rest.remove_prefix(file.size());
  constexpr std::string_view kLine = ": line ";
  if (rest.starts_with(kLine)) {
    rest.remove_prefix(kLine.size());
    uint64_t line = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), line);
    if (error == std::errc()) {
      json["line"] = line;
      rest.remove_prefix(size_t(end - rest.data()));
    }
  }
  rest.remove_prefix(std::min(rest.find_first_not_of(":, "), rest.size()));
  json["reason"] = std::string(rest);
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

std::string skipped_rows_text(const std::string& name, uint64_t count) {
  return fmt::format("{}: {} wrong and left out", name,
                     count == 1 ? "1 row is" : fmt::format("{} rows are", count));
}

void SkippedRows::add(const std::string& file, const Error& error) {
  if (first_.size() < kMostShown) first_.emplace_back(error.what());
  if (++count_ > kMostListed || path_.empty()) return;
  if (!list_) list_.emplace(path_);
  list_->write(json_line(file, error.what()));
}

void SkippedRows::commit() {
  if (list_) {
    list_->commit();
  } else if (!path_.empty()) {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
}

}  // namespace snug

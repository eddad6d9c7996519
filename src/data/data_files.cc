#include "data/data_files.h"

#include <glob.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "core/error.h"

namespace snug {
namespace {

bool exists(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists(name, ignored);
}

std::vector<std::string> entries_of(const std::string& list) {
  if (exists(list)) return {list};
  std::vector<std::string> entries;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    entries.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return entries;
}

// The number behind the last colon, which is taken off; "C:0.5" may also be a file.
std::optional<double> take_weight(const std::string& flag, std::string& entry) {
  const size_t colon = entry.rfind(':');
  if (colon == entry.npos || exists(entry)) return std::nullopt;
  double weight = 0;
  const char* const last = entry.data() + entry.size();
  const auto [end, error] = std::from_chars(entry.data() + colon + 1, last, weight);
  if (error != std::errc() || end != last) return std::nullopt;
  if (!(weight > 0) || !std::isfinite(weight)) {
    fail(ErrorKind::kUsage, "{}: the weight of {} is {}, expected a number above zero", flag,
         entry.substr(0, colon), entry.substr(colon + 1));
  }
  entry.resize(colon);
  return weight;
}

std::vector<std::string> matches(const std::string& flag, const std::string& entry) {
  if (exists(entry) || entry.find_first_of("*?") == entry.npos) return {entry};
  glob_t found{};
  const int result = ::glob(entry.c_str(), 0, nullptr, &found);
  std::vector<std::string> names(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result != 0 || names.empty()) {
    fail(ErrorKind::kInput, "{} {}: no file has such a name", flag, entry);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

DataFiles find_data_files(const std::string& flag, const std::string& list) {
  DataFiles result;
  std::set<std::filesystem::path> seen;
  size_t weights = 0;
  for (std::string entry : entries_of(list)) {
    if (entry.empty()) {
      fail(ErrorKind::kUsage, "{} is \"{}\": a name between commas is empty", flag, list);
    }
    const std::optional<double> weight = take_weight(flag, entry);
    weights += weight.has_value();
    const std::vector<std::string> names = matches(flag, entry);
    for (const std::string& name : names) {
      std::error_code ignored;
      std::filesystem::path whole = std::filesystem::weakly_canonical(name, ignored);
      if (!seen.insert(ignored ? std::filesystem::path(name) : std::move(whole)).second) {
        fail(ErrorKind::kInput, "{}: {} is given twice; its rows would count twice", flag, name);
      }
      result.files.emplace_back(name);
    }
    result.parts.push_back({names.size(), weight.value_or(0)});
  }
  if (weights > 0 && weights < result.parts.size()) {
    fail(ErrorKind::kUsage, "{} is \"{}\": give a weight to every file, or to none", flag, list);
  }
  if (weights == 0) result.parts.clear();
  return result;
}

std::string name_of_files(const std::vector<std::filesystem::path>& files) {
  return files.size() == 1 ? files[0].filename().string() : fmt::format("{} files", files.size());
}

}  // namespace snug

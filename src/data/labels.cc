#include "data/labels.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace snug {
namespace {

constexpr size_t kMaxLabels = 100'000;

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Lower case without any space: what two spellings of one label have in common.
std::string folded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (!is_space(c)) out += lower(c);
  }
  return out;
}

std::string shown(std::string_view label) {
  constexpr size_t kShown = 60;
  return fmt::format("\"{}{}\"", label.substr(0, kShown), label.size() > kShown ? "..." : "");
}

std::string shown_set(const std::vector<std::string>& names) {
  constexpr size_t kShown = 12;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    list += (i > 0 ? ", " : "") + shown(names[i]);
  }
  return names.size() > kShown ? list + fmt::format(", ... ({} in all)", names.size()) : list;
}

// "1.0", "-3.5", "2e-1": a number, but no integer.
bool is_fraction(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  size_t digits = 0, marks = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool exponent_sign =
        (text[i] == '-' || text[i] == '+') && i > 0 && lower(text[i - 1]) == 'e';
    if (is_digit(text[i])) {
      ++digits;
    } else if (text[i] == '.' || (lower(text[i]) == 'e' && digits > 0)) {
      ++marks;
    } else if (!exponent_sign) {
      return false;
    }
  }
  return digits > 0 && marks > 0;
}

// Edits (insert, delete, replace) that turn one string into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The known name that `label` was probably meant to be, or null. Numbers have no typos worth
// guessing.
const std::string* closest(std::string_view label, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64, kMostNames = 10'000;
  for (const std::string& name : names) {
    if (folded(name) == folded(label)) return &name;
  }
  if (label.size() > kLongest || names.size() > kMostNames ||
      std::ranges::all_of(label, is_digit)) {
    return nullptr;
  }
  const std::string* best = nullptr;
  size_t best_distance = label.size() >= 5 ? 3 : 2;
  for (const std::string& name : names) {
    if (name.size() > kLongest) continue;
    const size_t distance = edit_distance(folded(label), folded(name));
    if (distance >= best_distance || distance >= name.size()) continue;
    best = &name;
    best_distance = distance;
  }
  return best;
}

// True when `names`, in any order, are exactly 0..n-1 in plain decimal.
bool are_consecutive_integers(const std::vector<std::string>& names) {
  std::vector<bool> seen(names.size());
  for (const std::string& name : names) {
    if (name.empty() || name.size() > 6 || !std::ranges::all_of(name, is_digit)) return false;
    if (name.size() > 1 && name[0] == '0') return false;
    const size_t value = std::stoul(name);
    if (value >= names.size() || seen[value]) return false;
    seen[value] = true;
  }
  return true;
}

void order(std::vector<std::string>& names) {
  std::ranges::sort(names);
  if (!are_consecutive_integers(names)) return;
  std::ranges::sort(names, {}, [](const std::string& name) { return std::stoul(name); });
}

bool are_integers_beside_minus_one(const std::vector<std::string>& names) {
  std::vector<std::string> others = names;
  return std::erase(others, "-1") > 0 && are_consecutive_integers(others);
}

}  // namespace

int32_t LabelSet::find(std::string_view name) const {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? -1 : int32_t(found - names.begin());
}

LabelCollector::LabelCollector(Settings settings) : settings_(std::move(settings)) {
  if (settings_.known == nullptr) return;
  names_ = settings_.known->names;
  counts_.resize(names_.size());
  for (size_t i = 0; i < names_.size(); ++i) ids_.emplace(names_[i], int32_t(i));
}

int32_t LabelCollector::add(std::optional<std::string_view> label, uint64_t line) {
  const int32_t id = find(label, line);
  if (id >= 0) ++counts_[size_t(id)];
  return id;
}

int32_t LabelCollector::find(std::optional<std::string_view> label, uint64_t line) {
  if (settings_.need == LabelNeed::kIgnored) return -1;
  if (label) {
    const auto found = ids_.find(*label);
    if (found != ids_.end()) return found->second;
  }
  const bool absent = !label || label->empty() || folded(*label) == "nan";
  // GLUE marks the rows of its test files with -1.
  const bool unlabelled = absent || (settings_.known != nullptr && *label == "-1");
  if (unlabelled && settings_.need == LabelNeed::kOptional) return -1;
  if (absent) {
    fail(ErrorKind::kInput, "{}: line {}: {}; every row needs a label", settings_.file, line,
         label && !label->empty() ? fmt::format("label {} is a missing value", shown(*label))
                                  : std::string("the label is empty"));
  }
  if (settings_.known != nullptr) refuse_unknown(*label, line);
  return insert(*label, line);
}

int32_t LabelCollector::insert(std::string_view label, uint64_t line) {
  check_spelling(label, line);
  if (names_.size() == kMaxLabels) {
    fail(ErrorKind::kInput,
         "{}: line {}: more than {} different labels, the last {}; is this a text "
         "or a regression column?",
         settings_.file, line, kMaxLabels, shown(label));
  }
  const int32_t id = int32_t(names_.size());
  names_.emplace_back(label);
  first_lines_.push_back(line);
  counts_.push_back(0);
  ids_.emplace(label, id);
  return id;
}

void LabelCollector::check_spelling(std::string_view label, uint64_t line) const {
  if (is_space(label.front()) || is_space(label.back())) {
    fail(ErrorKind::kInput, "{}: line {}: label {} begins or ends with a space; remove it",
         settings_.file, line, shown(label));
  }
  if (is_fraction(label)) {
    fail(ErrorKind::kInput,
         "{}: line {}: label {} is a number with a fraction; classes are integers "
         "or names",
         settings_.file, line, shown(label));
  }
}

void LabelCollector::refuse_unknown(std::string_view label, uint64_t line) const {
  const std::string* guess = closest(label, names_);
  fail(ErrorKind::kInput, "{}: line {}: label {} is not one of the known labels {}{}",
       settings_.file, line, shown(label), shown_set(names_),
       guess ? fmt::format("; did you mean {}?", shown(*guess)) : std::string());
}

void LabelCollector::refuse_variants() const {
  std::unordered_map<std::string, size_t> spellings;
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto [earlier, is_new] = spellings.emplace(folded(names_[i]), i);
    if (is_new) continue;
    fail(ErrorKind::kInput,
         "{}: line {}: label {} differs from {} (line {}) only in case or spaces; "
         "spell them alike, or rename one if both are meant",
         settings_.file, first_lines_[i], shown(names_[i]), shown(names_[earlier->second]),
         first_lines_[earlier->second]);
  }
}

// -1 beside 0..n-1 means "unlabelled" far more often than a class.
void LabelCollector::refuse_minus_one(const std::vector<std::string>& sorted) const {
  const auto found = ids_.find(std::string_view("-1"));
  if (!are_integers_beside_minus_one(sorted)) return;
  fail(ErrorKind::kInput,
       "{}: line {}: label \"-1\" marks rows without a label, as in GLUE's test "
       "files; leave those rows out, or give the class a name",
       settings_.file, first_lines_[size_t(found->second)]);
}

void LabelCollector::remove(int32_t id) {
  if (id >= 0) --counts_[size_t(id)];
}

void LabelCollector::forget_from(size_t size) {
  for (size_t id = size; id < names_.size(); ++id) ids_.erase(names_[id]);
  names_.resize(size);
  counts_.resize(size);
  if (settings_.known == nullptr) first_lines_.resize(size);
}

LabelCollector::Result LabelCollector::finish() {
  Result result{
      {names_}, std::vector<int32_t>(names_.size()), std::vector<uint64_t>(names_.size())};
  std::vector<std::string>& sorted = result.labels.names;
  if (settings_.known == nullptr) {
    refuse_variants();
    order(sorted);
    if (settings_.need == LabelNeed::kRequired) refuse_minus_one(sorted);
  }
  for (size_t i = 0; i < sorted.size(); ++i) {
    const auto id = size_t(ids_.find(sorted[i])->second);
    result.final_ids[id] = int32_t(i);
    result.counts[i] = counts_[id];
  }
  return result;
}

LabelSet merged_labels(std::span<const FileLabels> files) {
  LabelSet merged;
  std::unordered_map<std::string, std::pair<std::string, std::string>>
      spellings;  // folded -> name, file
  for (const FileLabels& one : files) {
    for (const std::string& name : one.labels->names) {
      const auto [earlier, is_new] = spellings.try_emplace(folded(name), name, one.file);
      if (is_new) merged.names.push_back(name);
      if (earlier->second.first == name) continue;
      fail(ErrorKind::kInput,
           "{}: label {} differs from {} in {} only in case or spaces; spell them alike, or rename "
           "one if both are meant",
           one.file, shown(name), shown(earlier->second.first), earlier->second.second);
    }
  }
  order(merged.names);
  return merged;
}

void check_classes(const LabelSet& labels, const std::string& file) {
  if (are_integers_beside_minus_one(labels.names)) {
    fail(ErrorKind::kInput,
         "{}: label \"-1\" marks rows without a label, as in GLUE's test files; leave those rows "
         "out, or give the class a name",
         file);
  }
  if (labels.names.size() == 1) {
    fail(ErrorKind::kInput, "{}: every row has the label {}; expected at least two classes", file,
         shown(labels.names[0]));
  }
}

}  // namespace snug

#include "data/columns.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>

#include "core/error.h"

namespace snug {
namespace {

struct UsualTexts {
  std::string_view text, pair;  // pair may be empty
};

// First match wins. docs/data.md shows this table.
constexpr UsualTexts kUsualTexts[] = {
    {"text", "text_pair"},
    {"sentence1", "sentence2"},
    {"premise", "hypothesis"},
    {"question1", "question2"},
    {"#1 String", "#2 String"},
    {"text_a", "text_b"},
    {"text1", "text2"},
    {"question", "sentence"},
    {"text", ""},
    {"sentence", ""},
    {"question", "answer"},
    {"question", "passage"},
    {"query", "passage"},
    {"content", ""},
    {"review", ""},
    {"utterance", ""},
    {"comment", ""},
    {"comment_text", ""},
    {"tweet", ""},
    {"message", ""},
    {"document", ""},
    {"body", ""},
    {"sentence1", ""},
    {"premise", ""},
    {"question1", ""},
    {"question", ""},
    {"query", ""},
    {"title", ""},
};

constexpr std::string_view kUsualLabels[] = {
    "label",   "labels",     "class",      "category",         "target",
    "Quality", "gold_label", "intent",     "sentiment",        "rating",
    "stars",   "score",      "similarity", "similarity_score", "relatedness_score",
};

constexpr UsualTexts kUsualWords[] = {{"tokens", ""}, {"words", ""}};
constexpr std::string_view kUsualTags[] = {"ner_tags", "tags",     "labels",    "label",
                                           "ner",      "pos_tags", "chunk_tags"};

constexpr UsualTexts kUsualQuestions[] = {
    {"question", "context"}, {"question", "passage"}, {"question", "document"},
    {"query", "context"},    {"query", "passage"},    {"question", ""},
    {"query", ""},
};
constexpr std::string_view kUsualAnswers[] = {"answers"};

// What is looked for in rows of one kind; the last four stand in messages.
struct Usual {
  std::span<const UsualTexts> texts;
  std::span<const std::string_view> labels;
  std::string_view text_role, text_names, label_role, label_names;
};

Usual usual_of(RowKind kind) {
  if (kind == RowKind::kWords) {
    return {kUsualWords, kUsualTags, "words", "tokens, words", "tags", "ner_tags, tags, ..."};
  }
  if (kind == RowKind::kQuestions) {
    return {kUsualQuestions, kUsualAnswers, "question", "question, query", "answers", "answers"};
  }
  return {kUsualTexts, kUsualLabels, "text", "text, sentence, ...", "label", "label, class, ..."};
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 30;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    list += fmt::format("{}\"{}\"", i > 0 ? ", " : "", std::string_view(names[i]).substr(0, 60));
  }
  if (names.size() > kShown) list += fmt::format(", and {} more", names.size() - kShown);
  return list;
}

class Resolver {
 public:
  Resolver(const std::vector<std::string>& names, const RowReaderOptions& options,
           const std::string& file)
      : names_(names), options_(options), usual_(usual_of(options.kind)), file_(file) {}

  ColumnMap resolve() {
    const Columns& wanted = options_.columns;
    map_.count = names_.size();
    if (options_.kind == RowKind::kWords && !wanted.text_pair.empty() && wanted.text_pair != "-") {
      fail(ErrorKind::kInput, "{}: rows of words have no second text; \"{}\" is asked for", file_,
           wanted.text_pair);
    }
    find_texts(wanted);
    if (options_.kind == RowKind::kQuestions && !map_.text_pair) refuse_without_context();
    if (options_.labels != LabelNeed::kIgnored) find_label(wanted.label);
    refuse_one_column_twice();
    map_.names.text = names_[map_.text];
    if (map_.text_pair) map_.names.text_pair = names_[*map_.text_pair];
    if (map_.label) map_.names.label = names_[*map_.label];
    return std::move(map_);
  }

 private:
  // Exactly, else by the only name that differs in case alone.
  std::optional<size_t> find(std::string_view name) const {
    const auto exact = std::ranges::find(names_, name);
    if (exact != names_.end()) return size_t(exact - names_.begin());
    std::optional<size_t> match;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!equal_ignoring_case(names_[i], name)) continue;
      if (match) return std::nullopt;
      match = i;
    }
    return match;
  }

  // "#4", and "4" too where there is no header that could mean it as a name.
  std::optional<size_t> find_number(std::string_view name) const {
    if (name.starts_with('#')) {
      name.remove_prefix(1);
    } else if (options_.has_header) {
      return std::nullopt;
    }
    size_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    const bool whole = error == std::errc() && end == name.data() + name.size();
    return whole && number >= 1 && number <= names_.size() ? std::optional(number - 1)
                                                           : std::nullopt;
  }

  size_t find_named(std::string_view name, std::string_view role) const {
    if (const auto index = find(name)) return *index;
    if (const auto index = find_number(name)) return *index;
    fail(ErrorKind::kInput, "{}: no column \"{}\" for the {}; the columns are {}", file_, name,
         role, quoted_list(names_));
  }

  void find_texts(const Columns& wanted) {
    if (!wanted.text.empty()) {
      map_.text = find_named(wanted.text, usual_.text_role);
    } else if (!find_usual_texts()) {
      refuse_without_text();
    }
    if (wanted.text_pair == "-") {
      map_.text_pair.reset();
    } else if (!wanted.text_pair.empty()) {
      map_.text_pair = find_named(wanted.text_pair,
                                  options_.kind == RowKind::kQuestions ? "context" : "second text");
    } else if (!wanted.text.empty()) {
      find_usual_partner();
    }
  }

  bool find_usual_texts() {
    if (!options_.has_header && names_.size() == 1) return true;  // the only column
    for (const UsualTexts& usual : usual_.texts) {
      const auto text = find(usual.text);
      const auto pair = usual.pair.empty() ? std::nullopt : find(usual.pair);
      if (!text || (!usual.pair.empty() && !pair)) continue;
      map_.text = *text;
      map_.text_pair = pair;
      return true;
    }
    return false;
  }

  void find_usual_partner() {
    // A context is one whatever the question is called.
    const bool any = options_.kind == RowKind::kQuestions;
    for (const UsualTexts& usual : usual_.texts) {
      if (usual.pair.empty() || (!any && !equal_ignoring_case(usual.text, names_[map_.text]))) {
        continue;
      }
      map_.text_pair = find(usual.pair);
      if (map_.text_pair) return;
    }
  }

  [[noreturn]] void refuse_without_text() const {
    if (!options_.has_header) {
      fail(ErrorKind::kInput,
           "{}: {} columns without a header; name the text's by number, as in \"#{}\"", file_,
           names_.size(), names_.size());
    }
    fail(ErrorKind::kInput,
         "{}: no {} column by a usual name ({}); name it, or say that there is no header; the "
         "columns are {}",
         file_, usual_.text_role, usual_.text_names, quoted_list(names_));
  }

  [[noreturn]] void refuse_without_context() const {
    fail(ErrorKind::kInput,
         "{}: no context column by a usual name (context, passage, ...) for the question \"{}\"; "
         "the columns are {}",
         file_, names_[map_.text], quoted_list(names_));
  }

  void find_label(const std::string& wanted) {
    if (!wanted.empty()) {
      map_.label = find_named(wanted, usual_.label_role);
      return;
    }
    for (const std::string_view usual : usual_.labels) {
      map_.label = find(usual);
      if (map_.label) return;
    }
    if (options_.labels == LabelNeed::kRequired) {
      fail(ErrorKind::kInput, "{}: no {} column by a usual name ({}); the columns are {}", file_,
           usual_.label_role, usual_.label_names, quoted_list(names_));
    }
  }

  void refuse_one_column_twice() const {
    const bool twice = map_.text_pair == map_.text || map_.label == map_.text ||
                       (map_.label && map_.label == map_.text_pair);
    if (!twice) return;
    const size_t index = map_.label && map_.label == map_.text_pair ? *map_.label : map_.text;
    fail(ErrorKind::kInput, "{}: column \"{}\" is asked for twice, as text and as something else",
         file_, names_[index]);
  }

  const std::vector<std::string>& names_;
  const RowReaderOptions& options_;
  const Usual usual_;
  const std::string& file_;
  ColumnMap map_;
};

}  // namespace

ColumnMap resolve_columns(const std::vector<std::string>& names, const RowReaderOptions& options,
                          const std::string& file) {
  return Resolver(names, options, file).resolve();
}

void check_header(const std::vector<std::string>& names, char separator, const std::string& file) {
  for (size_t i = 0; i < names.size(); ++i) {
    const auto earlier = std::find(names.begin(), names.begin() + ptrdiff_t(i), names[i]);
    const size_t first = size_t(earlier - names.begin());
    if (first == i || names[i].empty()) continue;
    fail(ErrorKind::kInput, "{}: line 1: column name \"{}\" appears twice, as column {} and {}",
         file, names[i], first + 1, i + 1);
  }
  if (names.size() != 1) return;
  for (const char other : {';', '\t', ',', '|'}) {
    if (other == separator || names[0].find(other) == std::string::npos) continue;
    const std::string shown = other == '\t' ? "a tab" : fmt::format("'{}'", other);
    fail(ErrorKind::kInput,
         "{}: line 1: only one column found, \"{}\"; is the separator {}? "
         "Expected {}",
         file, names[0], shown, separator == ',' ? "commas (.csv)" : "tabs (.tsv)");
  }
}

void check_column_limit(size_t columns, uint64_t line, const std::string& file) {
  constexpr size_t kMaxColumns = 10'000;
  if (columns < kMaxColumns) return;
  fail(ErrorKind::kInput, "{}: line {}: more than {} columns", file, line, kMaxColumns);
}

std::vector<std::string> numbered_columns(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 1; i <= count; ++i) names.push_back(fmt::format("#{}", i));
  return names;
}

}  // namespace snug

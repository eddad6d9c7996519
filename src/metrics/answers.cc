#include "metrics/answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unicode/ucasemap.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "metrics/score_rows.h"
#include "text/unicode.h"

namespace snug {
namespace {

// Of scores of questions without and with an answer.
constexpr const char* kPrefixes[] = {"NoAns_", "HasAns_"};

// With the context that a final sigma needs. Ill-formed bytes become U+FFFD.
std::string to_lower(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  static UCaseMap* const root = ucasemap_open("", 0, &status);  // lives as long as the process
  std::string lower(text.size(), '\0');
  for (;;) {
    const int32_t length = ucasemap_utf8ToLower(root, lower.data(), int32_t(lower.size()),
                                                text.data(), int32_t(text.size()), &status);
    lower.resize(size_t(length));
    if (status != U_BUFFER_OVERFLOW_ERROR) break;
    status = U_ZERO_ERROR;
  }
  SNUG_CHECK(U_SUCCESS(status));
  return lower;
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

// str.isspace()
bool is_python_space(char32_t c) { return u_isUWhiteSpace(UChar32(c)) || (c >= 0x1c && c <= 0x1f); }

// \w of Python's re, but the underscore, which is punctuation; marks do not belong to it
bool is_python_word(char32_t c) {
  return (U_MASK(u_charType(UChar32(c))) & (U_GC_L_MASK | U_GC_N_MASK)) != 0;
}

bool is_article(std::string_view word) { return word == "a" || word == "an" || word == "the"; }

// A run of word characters that is an article becomes a space, as every white space does.
std::string without_articles(std::string_view text) {
  std::string out;
  size_t run = 0;  // where the run of word characters at the end of `out` begins
  const auto end_run = [&] {
    if (is_article(std::string_view(out).substr(run))) {
      out.resize(run);
      out += ' ';
    }
  };
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_ascii_punctuation(c)) continue;
    const bool word = is_python_word(c);
    if (!word) end_run();
    if (is_python_space(c)) {
      out += ' ';
    } else {
      append_utf8(out, c);
    }
    if (!word) run = out.size();
  }
  end_run();
  return out;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != text.npos;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

double word_f1(std::string_view gold, std::string_view prediction, SquadVersion version) {
  std::vector<std::string_view> a = split(gold), b = split(prediction);
  if (version == SquadVersion::k2 && (a.empty() || b.empty())) return a.empty() && b.empty();
  std::ranges::sort(a);
  std::ranges::sort(b);
  std::vector<std::string_view> common;
  std::ranges::set_intersection(a, b, std::back_inserter(common));
  if (common.empty()) return 0;
  const double precision = double(common.size()) / double(b.size()),
               recall = double(common.size()) / double(a.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

std::string normalize_answer(std::string_view text) {
  const std::string plain = without_articles(to_lower(text));
  return fmt::format("{}", fmt::join(split(plain), " "));
}

AnswerScore score_answer(std::span<const std::string> gold, std::string_view prediction,
                         SquadVersion version) {
  const std::string predicted = normalize_answer(prediction);
  AnswerScore best;
  bool compared = false;
  const auto compare = [&](const std::string& answer) {
    best.exact = std::max(best.exact, double(answer == predicted));
    best.f1 = std::max(best.f1, word_f1(answer, predicted, version));
    compared = true;
  };
  for (const std::string& text : gold) {
    const std::string answer = normalize_answer(text);
    if (version == SquadVersion::k1 || !answer.empty()) compare(answer);
  }
  if (!compared) compare("");
  return best;
}

AnswerMetrics::AnswerMetrics(SquadVersion version, std::filesystem::path scratch,
                             double no_answer_threshold)
    : version_(version), threshold_(no_answer_threshold), questions_(std::move(scratch)) {}

void AnswerMetrics::add(std::span<const std::string> gold, std::string_view prediction,
                        double no_answer_score) {
  if (std::isnan(no_answer_score)) {
    fail(ErrorKind::kNumbers, "the model's score of no answer is not a number");
  }
  AnswerScore score = score_answer(gold, prediction, version_);
  const bool has_answer = !gold.empty();
  if (version_ == SquadVersion::k2) {
    questions_.add({no_answer_score, score.f1, questions_.size(), uint32_t(score.exact), has_answer,
                    !prediction.empty()});
    if (no_answer_score > threshold_) score.exact = score.f1 = !has_answer;
  }
  Totals& totals = totals_[has_answer];
  ++totals.questions;
  totals.exact += score.exact;
  totals.f1 += score.f1;
}

void AnswerMetrics::reset() {
  totals_[0] = totals_[1] = {};
  questions_.clear();
}

MetricValues AnswerMetrics::all() {
  MetricValues values;
  const auto put = [&](const std::string& prefix, const Totals& totals) {
    const double n = double(totals.questions);
    values[prefix + (version_ == SquadVersion::k1 ? "exact_match" : "exact")] =
        100 * ratio(totals.exact, n);
    values[prefix + "f1"] = 100 * ratio(totals.f1, n);
    if (version_ == SquadVersion::k2) values[prefix + "total"] = n;
  };
  put("", {examples(), totals_[0].exact + totals_[1].exact, totals_[0].f1 + totals_[1].f1});
  if (version_ == SquadVersion::k1) return values;
  for (const bool has_answer : {true, false}) {
    if (totals_[has_answer].questions > 0) put(kPrefixes[has_answer], totals_[has_answer]);
  }
  put_best(values);
  return values;
}

std::vector<std::string> AnswerMetrics::sometimes() const {
  if (version_ == SquadVersion::k1) return {};
  std::vector<std::string> names;
  for (const std::string prefix : kPrefixes) {
    for (const char* name : {"exact", "f1", "total"}) names.push_back(prefix + name);
  }
  return names;
}

// All thresholds, from answering nothing upwards: what is gained by answering one more question.
void AnswerMetrics::put_best(MetricValues& values) {
  struct Best {
    double now, score, threshold = 0;

    void gain(double difference, double at) {
      now += difference;
      if (now <= score) return;
      score = now;
      threshold = at;
    }
  };
  const double unanswerable = double(totals_[0].questions), n = double(examples());
  Best exact{unanswerable, unanswerable}, f1{unanswerable, unanswerable};
  auto reader = questions_.read();
  for (Question question; reader.next(question);) {
    const double loss = question.is_answered ? -1 : 0;
    exact.gain(question.has_answer ? question.exact : loss, question.no_answer_score);
    f1.gain(question.has_answer ? question.f1 : loss, question.no_answer_score);
  }
  values["best_exact"] = 100 * ratio(exact.score, n);
  values["best_exact_thresh"] = exact.threshold;
  values["best_f1"] = 100 * ratio(f1.score, n);
  values["best_f1_thresh"] = f1.threshold;
}

}  // namespace snug

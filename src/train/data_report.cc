#include "train/data_report.h"

#include <xxhash.h>

#include <bit>

#include "core/error.h"
#include "core/progress.h"
#include "data/data_files.h"
#include "data/row_stream.h"
#include "metrics/external_sort.h"

namespace snug {
namespace {

constexpr size_t kSortBufferBytes = 8 << 20;

// A row in the search for equal ones.
struct RowHash {
  uint64_t text;
  uint32_t label;
  uint32_t validation;
  bool operator<(const RowHash& other) const {
    return text != other.text ? text < other.text : validation < other.validation;
  }
};

uint64_t hash_of_text(const Row& row) {
  const uint64_t first = XXH3_64bits(row.text.data(), row.text.size());
  return row.text_pair
             ? XXH3_64bits_withSeed(row.text_pair->data(), row.text_pair->size(), first + 1)
             : first;
}

class Examiner {
 public:
  explicit Examiner(const DataReportOptions& options)
      : options_(options), hashes_(options.scratch, kSortBufferBytes) {}

  FilesReport read(const std::vector<std::filesystem::path>& files, bool validation) {
    FilesReport report;
    for (const std::filesystem::path& file : files) read(file, validation, report);
    return report;
  }

  // Counts equal rows, when all have been read.
  void compare(DataReport& report) {
    auto sorted = hashes_.read();
    RowHash row{};
    bool any = sorted.next(row);
    while (any) {
      const RowHash first = row;
      uint64_t counts[2] = {0, 0};
      bool contradicts[2] = {false, false};
      uint32_t labels[2] = {0, 0};
      for (; any && row.text == first.text; any = sorted.next(row)) {
        const size_t part = row.validation;
        if (counts[part]++ == 0) labels[part] = row.label;
        contradicts[part] |= row.label != labels[part];
      }
      add_equal(counts[0], contradicts[0], report.files);
      if (!report.validation) continue;
      add_equal(counts[1], contradicts[1], *report.validation);
      if (counts[0] > 0) report.shared += counts[1];
    }
  }

 private:
  void read(const std::filesystem::path& file, bool validation, FilesReport& report) {
    SkippedRows skipped;
    RowStream rows(open_rows(file, {.kind = row_kind(options_.labelling),
                                    .columns = options_.columns,
                                    .labels = LabelNeed::kOptional,
                                    .has_header = options_.has_header,
                                    .label_separator = label_list_separator(
                                        options_.labelling, options_.label_separator)}),
                   file.string(), &skipped);
    RowLabeller labeller(options_.labelling, {.need = LabelNeed::kOptional, .file = file.string()},
                         options_.label_separator);
    Progress progress("reading " + file.filename().string(), 0, "rows");
    RowLabels labels;
    for (Row row; rows.next(row); progress.update(report.rows)) {
      try {
        labeller.add(row, labels);
      } catch (const Error& error) {
        rows.leave_out(error);
        continue;
      }
      ++report.rows;
      count_labels(row, labels, report);
      measure(row, report);
      const std::string_view label = row.label.value_or("");
      hashes_.add(
          {hash_of_text(row), uint32_t(XXH3_64bits(label.data(), label.size())), validation});
    }
    finish(labeller, report);
    report.bad_rows += skipped.count();
    for (const std::string& message : skipped.first()) {
      if (report.first_bad.size() < SkippedRows::kMostShown) report.first_bad.push_back(message);
    }
  }

  void count_labels(const Row& row, const RowLabels& labels, FilesReport& report) const {
    switch (options_.labelling) {
      case Labelling::kClass:
        report.unlabelled += labels.labels[0] < 0;
        break;
      case Labelling::kClasses:
        report.unlabelled += labels.labels.empty();
        break;
      case Labelling::kNumber: {
        if (labels.labels[0] == -1) {
          ++report.unlabelled;
          break;
        }
        const double value = std::bit_cast<float>(labels.labels[0]);
        const bool first = report.rows - report.unlabelled == 1;
        report.least = first ? value : std::min(report.least, value);
        report.most = first ? value : std::max(report.most, value);
        report.sum += value;
        break;
      }
      case Labelling::kTags:
        report.words += row.words.size();
        break;
      case Labelling::kAnswer:
        ++(row.answers.empty() ? report.unanswerable : report.answered);
        break;
    }
  }

  void measure(const Row& row, FilesReport& report) {
    if (options_.tokenizer == nullptr) return;
    options_.tokenizer->encode(row.text, row.text_pair, {}, encoding_);
    report.tokens += encoding_.ids.size();
    ++report.lengths[uint32_t(encoding_.ids.size())];
  }

  void finish(RowLabeller& labeller, FilesReport& report) const {
    if (options_.labelling == Labelling::kNumber || options_.labelling == Labelling::kAnswer) {
      return;
    }
    try {
      const LabelCollector::Result result = labeller.finish();
      for (size_t i = 0; i < result.counts.size(); ++i) {
        report.labels[result.labels.names[i]] += result.counts[i];
      }
    } catch (const Error& error) {
      report.problems.emplace_back(error.what());
    }
  }

  static void add_equal(uint64_t rows, bool contradicts, FilesReport& report) {
    if (rows > 1) report.duplicates += rows - 1;
    report.contradictions += contradicts;
  }

  const DataReportOptions& options_;
  ExternalSort<RowHash> hashes_;
  Encoding encoding_;
};

// What snug train refuses about the labels of all files together.
void check_labels(const DataReportOptions& options, FilesReport& report) {
  if (options.labelling != Labelling::kClass) return;
  LabelSet labels;
  for (const auto& label : report.labels) labels.names.push_back(label.first);
  try {
    check_classes(labels, name_of_files(options.files));
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
  }
}

// Labels that only validation has cannot be measured: snug train refuses them.
void check_validation_labels(const FilesReport& files, const std::string& name,
                             FilesReport& validation) {
  if (files.labels.empty() || !files.problems.empty()) return;  // then not all of them are known
  for (const auto& label : validation.labels) {
    if (files.labels.contains(label.first)) continue;
    validation.problems.push_back(
        fmt::format("{}: label \"{}\" is not in the training files", name, label.first));
    if (validation.problems.size() == SkippedRows::kMostShown) break;
  }
}

void refuse_without_rows(const FilesReport& report,
                         const std::vector<std::filesystem::path>& files) {
  if (report.rows > 0) return;
  if (report.bad_rows == 0) fail(ErrorKind::kInput, "{}: no rows of data", files[0].string());
  throw Error(ErrorKind::kInput, report.first_bad[0],
              "no row can be read; is it another format, or another --task?");
}

}  // namespace

uint32_t FilesReport::percentile(double share) const {
  uint64_t seen = 0;
  for (const auto& [length, count] : lengths) {
    seen += count;
    if (double(seen) >= share * double(rows)) return length;
  }
  return lengths.empty() ? 0 : lengths.rbegin()->first;
}

uint64_t FilesReport::longer_than(size_t length) const {
  uint64_t longer = 0;
  for (auto at = lengths.upper_bound(uint32_t(length)); at != lengths.end(); ++at) {
    longer += at->second;
  }
  return longer;
}

DataReport examine_data(const DataReportOptions& options) {
  if (options.max_length > 0 && options.tokenizer == nullptr) {
    throw Error(ErrorKind::kUsage, "--max-length counts tokens, which only a model has",
                "--model DIR names one");
  }
  DataReport report;
  report.options = options;
  Examiner examiner(options);
  report.files = examiner.read(options.files, /*validation=*/false);
  refuse_without_rows(report.files, options.files);
  check_labels(options, report.files);
  if (!options.validation.empty()) {
    report.validation = examiner.read(options.validation, /*validation=*/true);
    refuse_without_rows(*report.validation, options.validation);
    check_validation_labels(report.files, name_of_files(options.validation), *report.validation);
  }
  examiner.compare(report);
  return report;
}

}  // namespace snug

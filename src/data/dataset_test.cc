#include "data/dataset.h"

#include <unistd.h>

#include <cstring>
#include <thread>

#include "core/progress.h"
#include "data/cache_file.h"
#include "data/test_support.h"

namespace snug {
namespace {

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() { set_quiet(true); }

  DatasetOptions options() const {
    return {.cache_folder = folder_.path() / "cache", .threads = 2};
  }
  Dataset open(std::string_view csv, const std::string& name = "x.csv") const {
    return Dataset::open(folder_.write(name, csv), tokenizer_, options());
  }
  std::filesystem::path cache_file() const {
    return *std::filesystem::directory_iterator(folder_.path() / "cache");
  }

  TemporaryFolder folder_;
  FakeTokenizer tokenizer_;
};

std::string many_rows(size_t rows, const std::string& words = "some words in a row") {
  std::string csv = "text,label\n";
  for (size_t i = 0; i < rows; ++i) {
    csv += words + " " + std::to_string(i) + "," + (i % 3 ? "yes" : "no") + "\n";
  }
  return csv;
}

TEST_F(DatasetTest, ReturnsWhatTheTokenizerSaid) {
  const Dataset data = open("text,text_pair,label\none two,three,b\nfour,,a\n\"\",x y,b\n");
  EXPECT_EQ(data.rows(), 3u);
  EXPECT_EQ(data.tokens(), 6u + 4 + 5);
  EXPECT_EQ(data.longest(), 6u);
  EXPECT_EQ(data.labels().names, (std::vector<std::string>{"a", "b"}));
  Encoding expected;
  tokenizer_.encode("one two", "three", {}, expected);
  RowByRow rows(data);
  const Example& example = rows.read(0);
  EXPECT_EQ(example.ids, expected.ids);
  EXPECT_EQ(example.type_ids, expected.type_ids);
  EXPECT_EQ(example.labels[0], 1);
  EXPECT_EQ(rows.read(1).labels[0], 0);
  EXPECT_EQ(rows.read(1).ids.size(), 4u);
}

TEST_F(DatasetTest, HoldsLargeVocabulariesAndLongRows) {
  std::string words;
  for (int i = 0; i < 5000; ++i) words += "w" + std::to_string(i) + " ";
  const std::filesystem::path file = folder_.write("x.csv", many_rows(600, words));
  for (const int32_t vocab : {1000, 65535, 65536, 1'000'000}) {
    const FakeTokenizer tokenizer(vocab);
    DatasetOptions long_rows = options();
    long_rows.encoding.max_length = 4000;
    const Dataset data = Dataset::open(file, tokenizer, long_rows);
    EXPECT_EQ(data.long_rows(), 600u);
    Encoding expected;
    tokenizer.encode(words + "599", std::nullopt, {.max_length = 4000}, expected);
    EXPECT_EQ(RowByRow(data).read(599).ids, expected.ids);
  }
}

TEST_F(DatasetTest, CountsTruncatedRowsOnlyWhereSomethingWasCut) {
  DatasetOptions short_rows = options();
  short_rows.encoding.max_length = 4;
  const Dataset data = Dataset::open(folder_.write("x.csv", "text,label\na b,0\na b c,1\na,1\n"),
                                     tokenizer_, short_rows);
  EXPECT_EQ(data.longest(), 4u);
  EXPECT_EQ(data.long_rows(), 1u);
}

TEST_F(DatasetTest, KeepsTheOrderOverManyBlocksAndThreads) {
  std::string csv = "text,label\n";
  for (int i = 0; i < 20'000; ++i) csv += std::to_string(i) + "," + std::to_string(i % 7) + "\n";
  const std::filesystem::path file = folder_.write("x.csv", csv);
  for (const int threads : {1, 3}) {
    DatasetOptions many = options();
    many.threads = threads;
    many.cache_folder = folder_.path() / std::to_string(threads);
    const Dataset data = Dataset::open(file, tokenizer_, many);
    ASSERT_EQ(data.rows(), 20'000u);
    RowByRow rows(data);
    Encoding expected;
    for (uint64_t row = 0; row < data.rows(); ++row) {
      const Example& example = rows.read(row);
      tokenizer_.encode(std::to_string(row), std::nullopt, {}, expected);
      ASSERT_EQ(example.ids, expected.ids) << row;
      ASSERT_EQ(example.labels[0], int32_t(row % 7));
    }
  }
}

TEST_F(DatasetTest, ReusesTheCacheUntilTheSourceChanges) {
  const Dataset first = open(many_rows(10));
  const auto built = std::filesystem::last_write_time(cache_file());
  const std::filesystem::path file = folder_.path() / "x.csv";
  EXPECT_EQ(Dataset::open(file, tokenizer_, options()).fingerprint(), first.fingerprint());
  EXPECT_EQ(std::filesystem::last_write_time(cache_file()), built);

  // Touched: hashed again, not built again.
  std::filesystem::last_write_time(file, built + std::chrono::hours(1));
  EXPECT_EQ(Dataset::open(file, tokenizer_, options()).fingerprint(), first.fingerprint());
  EXPECT_EQ(std::filesystem::last_write_time(cache_file()), built);

  // Same size, other contents.
  std::string changed = many_rows(10);
  changed[changed.find("words")] = 'W';
  const Dataset second = open(changed);
  EXPECT_NE(second.fingerprint(), first.fingerprint());
  // The dataset that was open still has its rows.
  EXPECT_EQ(RowByRow(first).read(9).ids.size(), 8u);
}

TEST_F(DatasetTest, NamesTheCacheByEverythingThatDecidesIt) {
  const std::filesystem::path file = folder_.write("x.csv", "text,other,label\na b c,d,0\nd,e,1\n");
  const LabelSet known{{"0", "1"}};
  std::vector<DatasetOptions> variants(5, options());
  variants[1].encoding.max_length = 4;
  variants[2].labels = LabelNeed::kIgnored;
  variants[3].known_labels = &known;
  variants[4].columns.text = "other";
  std::vector<uint64_t> fingerprints;
  for (const DatasetOptions& variant : variants) {
    fingerprints.push_back(Dataset::open(file, tokenizer_, variant).fingerprint());
  }
  fingerprints.push_back(Dataset::open(file, FakeTokenizer(999), options()).fingerprint());
  std::ranges::sort(fingerprints);
  EXPECT_EQ(std::ranges::adjacent_find(fingerprints), fingerprints.end());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path() / "cache"), {}), 6);
}

TEST_F(DatasetTest, RebuildsADamagedCache) {
  const std::filesystem::path file = folder_.write("x.csv", many_rows(300));
  std::filesystem::last_write_time(file,
                                   std::filesystem::last_write_time(file) - std::chrono::hours(1));
  const uint64_t fingerprint = Dataset::open(file, tokenizer_, options()).fingerprint();
  const auto open_again = [&] { return Dataset::open(file, tokenizer_, options()).fingerprint(); };
  const std::filesystem::path cache = cache_file();
  const std::string good = read_small_file(cache);
  CacheHeader header;
  std::memcpy(&header, good.data(), sizeof header);
  for (const size_t at :
       {size_t{0}, size_t{9}, size_t{60}, size_t{header.index_begin + 5}, good.size() - 1}) {
    std::string bad = good;
    bad[at] = char(bad[at] ^ 1);
    folder_.write("cache/" + cache.filename().string(), bad);
    EXPECT_EQ(open_again(), fingerprint);
    EXPECT_TRUE(read_small_file(cache) == good) << at;
  }
  for (const size_t size : {size_t{0}, size_t{100}, good.size() / 2, good.size() - 1}) {
    folder_.write("cache/" + cache.filename().string(), good.substr(0, size));
    EXPECT_EQ(open_again(), fingerprint);
    EXPECT_TRUE(read_small_file(cache) == good) << size;
  }
}

TEST_F(DatasetTest, RefusesADamagedRecord) {
  open(many_rows(300));
  const std::filesystem::path cache = cache_file();
  std::string bytes = read_small_file(cache);
  CacheHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  uint64_t begin = 0;
  std::memcpy(&begin, bytes.data() + header.index_begin + 8 * 7, 8);
  bytes[begin + sizeof(RecordHead) + 1] ^= 0x40;
  folder_.write("cache/" + cache.filename().string(), bytes);
  const Dataset data = Dataset::open(folder_.path() / "x.csv", tokenizer_, options());
  RowByRow rows(data);
  rows.read(6);
  const std::string error = error_of([&] { rows.read(7); });
  EXPECT_TRUE(error.starts_with("5: ")) << error;
  EXPECT_NE(error.find("row 7 is damaged"), error.npos) << error;
}

TEST_F(DatasetTest, ReportsTheFirstProblemInTheFile) {
  struct Bad {
    std::string csv;
    const char* expected;
  };
  std::string two_problems = many_rows(5000);
  two_problems += "boom snug-explodes,yes\n";
  for (int i = 0; i < 100; ++i) two_problems += "more,no\n";
  two_problems += "broken row\n";
  const Bad cases[] = {
      {"text,label\n", "x.csv: no rows of data"},
      {"text,label\n,0\n\"  \",1\n", "the text is empty in every row (column \"text\")"},
      {many_rows(2000) + "a,\n", "x.csv: line 2002: the label is empty"},
      {many_rows(2000) + "a,b,c\n", "x.csv: line 2002: 3 columns, expected 2"},
      {two_problems, "x.csv: line 5002: tokenizer: boom snug-explodes"},
  };
  for (const Bad& bad : cases) {
    const std::string error = error_of([&] { open(bad.csv); });
    EXPECT_TRUE(error.starts_with("3: ")) << error;
    EXPECT_NE(error.find(bad.expected), error.npos) << error;
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path() / "cache")) << bad.expected;
  }
}

TEST_F(DatasetTest, ChecksValidationLabelsAgainstTheKnownSet) {
  const LabelSet known{{"no", "yes"}};
  DatasetOptions validation = options();
  validation.known_labels = &known;
  const Dataset data =
      Dataset::open(folder_.write("v.csv", "text,label\na,yes\n"), tokenizer_, validation);
  EXPECT_EQ(RowByRow(data).read(0).labels[0], 1);
  EXPECT_EQ(data.labels().names, known.names);
  const std::string error = error_of([&] {
    Dataset::open(folder_.write("w.csv", "text,label\na,yes\nb,Yes\n"), tokenizer_, validation);
  });
  EXPECT_NE(
      error.find("w.csv: line 3: label \"Yes\" is not one of the known labels \"no\", \"yes\"; did "
                 "you mean \"yes\"?"),
      error.npos)
      << error;
}

TEST_F(DatasetTest, TakesRowsWithoutTokensOnlyWithoutLabels) {
  const FakeTokenizer bare(1000, false);
  const std::string error = error_of(
      [&] { Dataset::open(folder_.write("x.csv", "text,label\na,1\n,0\n"), bare, options()); });
  EXPECT_NE(error.find("line 3: the text gives no tokens"), error.npos) << error;
  DatasetOptions unlabelled = options();
  unlabelled.labels = LabelNeed::kIgnored;
  const Dataset data = Dataset::open(folder_.write("x.txt", "a\n\nb c\n"), bare, unlabelled);
  EXPECT_EQ(data.rows(), 3u);
  EXPECT_TRUE(RowByRow(data).read(1).ids.empty());
}

TEST_F(DatasetTest, IsSafeWhenSeveralOpenAtOnce) {
  const std::filesystem::path file = folder_.write("x.csv", many_rows(3000));
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const Dataset data = Dataset::open(file, tokenizer_, options());
      RowByRow rows(data);
      for (uint64_t row = 0; row < data.rows(); ++row) rows.read(row);
      good += data.rows() == 3000;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

TEST_F(DatasetTest, SaysWhenTheCacheCannotBeWritten) {
  DatasetOptions blocked = options();
  blocked.cache_folder = folder_.write("a-file", "");
  const std::string error =
      error_of([&] { Dataset::open(folder_.write("x.csv", many_rows(3)), tokenizer_, blocked); });
  EXPECT_TRUE(error.starts_with("5: ")) << error;
  EXPECT_NE(error_of([&] { Dataset::open("-", tokenizer_, options()); }).find("standard input"),
            std::string::npos);
}

// Resident memory of this process, or 0 where the system does not say.
size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * size_t(::sysconf(_SC_PAGESIZE));
}

size_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      size_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes << 10;
    }
  }
  return 0;
}

// Sets the peak back to what is resident now.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

TEST_F(DatasetTest, BuildingTakesLittleMemoryHoweverManyRows) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own memory";
#endif
  if (resident_bytes() == 0) GTEST_SKIP() << "no /proc";
  const std::filesystem::path file = folder_.path() / "x.csv";
  {
    std::ofstream out(file);
    out << "text,label\n";
    for (int i = 0; i < 1'000'000; ++i) out << "row " << i << " of many," << i % 2 << "\n";
  }
  const size_t before = resident_bytes();
  reset_peak();
  const Dataset data = Dataset::open(file, tokenizer_, options());
  EXPECT_EQ(data.rows(), 1'000'000u);
  EXPECT_LE(peak_resident_bytes(), before + (size_t{12} << 20));
}

TEST_F(DatasetTest, ReadsRealData) {
  const std::filesystem::path shared = shared_data();
  if (shared.empty()) GTEST_SKIP() << "no shared data";
  const Dataset sst2 = Dataset::open(shared / "sst2/train.tsv", tokenizer_, options());
  EXPECT_EQ(sst2.rows(), 67349u);
  EXPECT_EQ(sst2.labels().names, (std::vector<std::string>{"0", "1"}));
  RowByRow rows(sst2);
  uint64_t positive = 0;
  for (uint64_t row = 0; row < sst2.rows(); ++row) positive += rows.read(row).labels[0] == 1;
  EXPECT_EQ(positive, 37569u);
  EXPECT_EQ(
      Dataset::open(shared / "clinc150/train.tsv", tokenizer_, options()).labels().names.size(),
      151u);
}

}  // namespace
}  // namespace snug

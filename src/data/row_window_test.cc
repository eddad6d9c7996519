#include "data/row_window.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "core/progress.h"
#include "data/cache_file.h"
#include "data/test_support.h"

namespace snug {
namespace {

class RowWindowTest : public ::testing::Test {
 protected:
  RowWindowTest() { set_quiet(true); }

  // Texts of up to `words` words, each text another.
  std::filesystem::path write(const std::string& name, size_t rows, size_t words) const {
    std::string csv = "text,label\n";
    std::mt19937 random(unsigned(rows + words));
    for (size_t i = 0; i < rows; ++i) {
      csv += fmt::format("{}-{}", name, i);
      for (size_t n = random() % words; n > 0; --n) csv += fmt::format(" w{}", random() % 1000);
      csv += fmt::format(",{}\n", i % 3);
    }
    return folder_.write(name, csv);
  }
  Dataset open(const std::vector<std::filesystem::path>& files) const {
    return Dataset::open(files, tokenizer_, {.cache_folder = folder_.path() / "cache"});
  }

  TemporaryFolder folder_;
  FakeTokenizer tokenizer_{60'000};
};

// All rows of a stretch as a stream reads them, against each on its own.
void expect_rows(const Dataset& data, RowWindow& window, const EpochOrder& order, uint64_t first) {
  RowByRow rows(data);
  Example got;
  for (size_t i = 0; i < window.size(); ++i) {
    ASSERT_EQ(window.row(i), order(first + i));
    window.read(i, got);
    const Example& expected = rows.read(window.row(i));
    ASSERT_EQ(got.ids, expected.ids) << i;
    ASSERT_EQ(got.labels, expected.labels) << i;
    ASSERT_EQ(window.length(i), expected.ids.size()) << i;
  }
}

// Neighbours that are read together, rows far from each other, rows longer than a chunk, several
// files.
TEST_F(RowWindowTest, HoldsTheRowsOfAStretchInItsOrder) {
  const Dataset whole = open(
      {write("short.csv", 30'000, 3), write("medium.csv", 300, 200), write("long.csv", 5, 50'000)});
  const MixturePart shares[] = {{1, 1}, {1, 1}, {1, 1}};
  const Dataset parts[] = {whole.part(0, whole.rows()), whole.part(20'000, 10'303),
                           whole.split(10, 3).held_out, whole.mixed(shares, 1000)};
  for (const Dataset& data : parts) {
    for (const size_t rows_per_step : {1, 7, 500}) {
      const EpochOrder order(data, 42, 1);
      RowWindow window(data, RowWindow::limits(data, rows_per_step));
      for (const uint64_t first : {0, 5, 400}) {
        window.start(order, {.first = first, .count = 500, .rows_per_step = rows_per_step});
        for (const uint64_t before = window.effort_left(); window.effort_left() > 0;) {
          window.work(before / 10);
        }
        EXPECT_TRUE(window.size() == 500 ||
                    (window.size() > 0 && window.size() % rows_per_step == 0))
            << window.size();
        expect_rows(data, window, order, first);
      }
    }
  }
}

TEST_F(RowWindowTest, LeavesOutStepsThatHaveNoRoom) {
  const Dataset data = open({write("x.csv", 1000, 30)});
  const EpochOrder order(data, 1, 0);
  const RowWindow::Limits one = RowWindow::limits(data, 10);
  EXPECT_EQ(one.rows, 1000u);
  // A record has 16 + 4 + 2 * 32 bytes at most.
  RowWindow window(data, {.rows = 100, .record_bytes = 10 * 80});
  uint64_t first = 0;
  for (size_t windows = 0; first < 1000; ++windows, first += window.size()) {
    window.start(
        order,
        {.first = first, .count = std::min<uint64_t>(100, 1000 - first), .rows_per_step = 10});
    window.work(window.effort_left());
    ASSERT_GT(window.size(), 0u);
    ASSERT_LT(window.size(), 100u);
    ASSERT_EQ(window.size() % 10, 0u);
    expect_rows(data, window, order, first);
  }
  EXPECT_EQ(first, 1000u);
}

// Offsets are sound when a cache is opened; what happens to them later must not lead anywhere else.
TEST_F(RowWindowTest, RefusesOffsetsThatChangedUnderIt) {
  const Dataset data = open({write("x.csv", 1000, 30)});
  const std::filesystem::path cache =
      *std::filesystem::directory_iterator(folder_.path() / "cache");
  CacheHeader header;
  std::memcpy(&header, read_small_file(cache).data(), sizeof header);
  const uint64_t wrong[] = {0,
                            sizeof(CacheHeader),
                            header.index_begin - 1,
                            header.index_begin,
                            ~uint64_t{0},
                            uint64_t{1} << 63};
  for (const uint64_t offset : wrong) {
    for (const uint64_t row : {1, 500, 999}) {
      const int file = ::open(cache.c_str(), O_RDWR);
      uint64_t sound = 0;
      const auto place = off_t(header.index_begin + 8 * row);
      ASSERT_EQ(::pread(file, &sound, sizeof sound, place), ssize_t(sizeof sound));
      ASSERT_EQ(::pwrite(file, &offset, sizeof offset, place), ssize_t(sizeof offset));
      RowWindow window(data, RowWindow::limits(data, 10));
      Example example;
      const std::string error = error_of([&] {
        window.start(EpochOrder(data, 3, 0), {.first = 0, .count = 1000, .rows_per_step = 10});
        window.work(window.effort_left());
        for (size_t i = 0; i < window.size(); ++i) window.read(i, example);
      });
      EXPECT_TRUE(error.starts_with("5: ")) << offset << " " << row << " " << error;
      ASSERT_EQ(::pwrite(file, &sound, sizeof sound, place), ssize_t(sizeof sound));
      ::close(file);
    }
  }
}

}  // namespace
}  // namespace snug

#include "metrics/external_sort.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"

namespace snug {
namespace {

std::filesystem::path scratch() {
  return std::filesystem::temp_directory_path() / "snug-external-sort-test";
}

std::vector<uint64_t> read_all(ExternalSort<uint64_t>& sort, size_t reader = 0,
                               size_t readers = 1) {
  auto records = sort.read(reader, readers);
  std::vector<uint64_t> all;
  for (uint64_t record; records.next(record);) all.push_back(record);
  return all;
}

// From nothing to many merges: the buffer holds 64 records, or 1,024.
TEST(ExternalSort, GivesEveryRecordInOrder) {
  for (const size_t buffer_records : {64, 1024}) {
    for (const size_t count : {0, 1, 63, 64, 65, 128, 129, 1000, 5000, 20000}) {
      std::mt19937_64 random(count);
      ExternalSort<uint64_t> sort(scratch(), buffer_records * 8);
      std::vector<uint64_t> expected;
      for (size_t i = 0; i < count; ++i) {
        expected.push_back(random() % 997);  // many are equal
        sort.add(expected.back());
      }
      std::ranges::sort(expected);
      EXPECT_EQ(sort.size(), count);
      EXPECT_EQ(read_all(sort), expected) << count;
      EXPECT_EQ(read_all(sort), expected) << "again, " << count;
    }
  }
}

TEST(ExternalSort, TwoReadersShareTheBuffer) {
  ExternalSort<uint64_t> sort(scratch(), 64 * 8);
  for (uint64_t i = 0; i < 3000; ++i) sort.add(i * 7919 % 3000);
  auto ahead = sort.read(0, 2), behind = sort.read(1, 2);
  uint64_t a = 0, b = 0;
  for (uint64_t i = 0; i < 1500; ++i) ASSERT_TRUE(ahead.next(a) && a == i);
  for (uint64_t i = 0; i < 3000; ++i) {
    ASSERT_TRUE(behind.next(b) && b == i);
    if (i % 2 == 0) {
      ASSERT_TRUE(ahead.next(a) && a == 1500 + i / 2);
    }
  }
  EXPECT_FALSE(ahead.next(a));
  EXPECT_FALSE(behind.next(b));
}

TEST(ExternalSort, GoesOnAfterReading) {
  ExternalSort<uint64_t> sort(scratch(), 64 * 8);
  std::vector<uint64_t> expected;
  for (uint64_t i = 0; i < 400; ++i) {
    sort.add(1000 - i);
    expected.insert(expected.begin(), 1000 - i);
    if (i % 37 == 0) {
      ASSERT_EQ(read_all(sort), expected);
    }
  }
  sort.clear();
  EXPECT_TRUE(read_all(sort).empty());
  sort.add(3);
  sort.add(1);
  EXPECT_EQ(read_all(sort), (std::vector<uint64_t>{1, 3}));
}

TEST(ExternalSort, TouchesNoFileBeforeTheBufferIsFull) {
  ExternalSort<uint64_t> sort("/proc/there-is-no-such-folder", 64 * 8);
  for (uint64_t i = 0; i < 64; ++i) sort.add(i);
  EXPECT_EQ(read_all(sort).size(), 64u);
  try {
    sort.add(64);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kStorage);
    EXPECT_NE(std::string(e.what()).find("/proc/there-is-no-such-folder"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace snug

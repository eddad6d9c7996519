#include "train/event_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "core/crc32c.h"
#include "core/wire_writer.h"

namespace snug {
namespace {

uint32_t number_at(const std::string& bytes, size_t offset) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}
uint32_t checksum(std::string_view bytes) {
  return masked_crc32c(crc32c(std::as_bytes(std::span(bytes))));
}

// The contents of each record, whose lengths and checksums are right.
std::vector<std::string> records(const std::string& bytes) {
  std::vector<std::string> found;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = number_at(bytes, at);
    EXPECT_EQ(number_at(bytes, at + 4), 0u) << "the upper half of the length";
    EXPECT_EQ(number_at(bytes, at + 8), checksum({bytes.data() + at, 8}));
    EXPECT_EQ(number_at(bytes, at + 12 + length), checksum({bytes.data() + at + 12, length}));
    found.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  return found;
}

TEST(EventFile, HoldsEveryScalarInACheckedRecord) {
  const std::string path = testing::TempDir() + "events.out.tfevents.test";
  {
    EventFile file(path);
    file.add(300, {{"train/loss", 0.5}, {"train/epoch", 1.25}});
    file.add(301, {});
  }
  std::ifstream in(path, std::ios::binary);
  const auto found = records(std::string(std::istreambuf_iterator<char>(in), {}));
  ASSERT_EQ(found.size(), 3u);
  constexpr size_t kTime = 9;  // the field of the time stands first
  EXPECT_EQ(found[0].substr(kTime),
            "\x1a\x0d"
            "brain.Event:2");
  const std::string loss = "\x0a\x0atrain/loss\x15" + wire::fixed(0.5f),
                    epoch = "\x0a\x0btrain/epoch\x15" + wire::fixed(1.25f);
  EXPECT_EQ(found[1].substr(kTime), "\x10\xac\x02\x2a\x27\x0a\x11" + loss + "\x0a\x12" + epoch);
  EXPECT_EQ(found[2].substr(kTime), std::string("\x10\xad\x02\x2a\x00", 5));
  double time = 0;
  std::memcpy(&time, found[1].data() + 1, sizeof time);
  EXPECT_GT(time, 1.6e9) << "seconds since 1970";
}

}  // namespace
}  // namespace snug

#include "data/data_files.h"

#include "data/test_support.h"

namespace snug {
namespace {

std::string described(const TemporaryFolder& folder, std::string list) {
  for (size_t at = 0; (at = list.find('@', at)) != list.npos;) {
    list.replace(at, 1, folder.path().string() + "/");
  }
  std::string out;
  const std::string error = error_of([&] {
    const DataFiles found = find_data_files("--train", list);
    for (const auto& file : found.files) out += file.filename().string() + " ";
    for (const MixturePart& part : found.parts) {
      out += fmt::format("{}x{} ", part.files, part.weight);
    }
  });
  return error == "no error" ? out : error;
}

TEST(DataFiles, AreListsAndPatternsWithOrWithoutWeights) {
  const TemporaryFolder folder;
  for (const char* name : {"a1.csv", "a2.csv", "a10.csv", "b.csv", "with,comma.csv", "c:0.5"}) {
    folder.write(name, "text\nx\n");
  }
  const struct {
    const char *list, *expected;
  } cases[] = {
      {"@b.csv", "b.csv "},
      {"@b.csv,@a1.csv", "b.csv a1.csv "},
      {"@a*.csv", "a1.csv a10.csv a2.csv "},
      {"@a?.csv,@b.csv", "a1.csv a2.csv b.csv "},
      {"@a*.csv:3,@b.csv:1.5", "a1.csv a10.csv a2.csv b.csv 3x3 1x1.5 "},
      {"@with,comma.csv", "with,comma.csv "},
      {"@c:0.5", "c:0.5 "},
      {"@absent.csv", "absent.csv "},  // whoever opens it says so
      {"@x*.csv", "3: --train"},
      {"@a1.csv,@a*.csv", "is given twice"},
      {"@a1.csv,,@b.csv", "2: --train"},
      {"@a1.csv:1,@b.csv", "give a weight to every file, or to none"},
      {"@a1.csv:0,@b.csv:1", "is 0, expected a number above zero"},
      {"@a1.csv:-1,@b.csv:1", "is -1, expected a number above zero"},
      {"@a1.csv:inf,@b.csv:1", "is inf, expected a number above zero"},
      {"@a1.csv:nan,@b.csv:1", "is nan, expected a number above zero"},
  };
  for (const auto& test : cases) {
    const std::string got = described(folder, test.list);
    EXPECT_NE(got.find(test.expected), got.npos) << test.list << ": " << got;
    if (std::string_view(test.expected).ends_with(' ')) {
      EXPECT_EQ(got, test.expected);
    }
  }
}

TEST(DataFiles, AreNamedTogether) {
  EXPECT_EQ(name_of_files({"folder/a.csv"}), "a.csv");
  EXPECT_EQ(name_of_files({"folder/a.csv", "b.csv"}), "2 files");
}

}  // namespace
}  // namespace snug

#include "core/shared_lines.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/file.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Lines = std::vector<std::string>;

constexpr milliseconds kAtOnce(0), kLong(20'000);

class SharedLinesTest : public ::testing::Test {
 protected:
  SharedLinesTest() { fs::remove_all(folder_); }
  ~SharedLinesTest() override { fs::remove_all(folder_); }

  // As a process does that is killed while it writes, if `text` has no end.
  void append(std::string_view text) const { std::ofstream(path_, std::ios::app) << text; }

  const fs::path folder_ =
      ::testing::TempDir() + "snug-shared-lines-test-" + std::to_string(::getpid());
  const fs::path path_ = folder_ / "below" / "lines";
};

// What fails there is seen by the child's status; noexcept, since none of gtest's code is to run
// on.
pid_t start_child(const std::function<bool()>& action) noexcept {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(action() ? 0 : 1);
  return child;
}

TEST_F(SharedLinesTest, NothingIsTouchedBeforeItMustBe) {
  SharedLines lines(path_);
  EXPECT_EQ(lines.fresh(), Lines());
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_TRUE(lines.hold(kAtOnce).held());
  EXPECT_TRUE(fs::exists(path_));
  EXPECT_EQ(lines.fresh(), Lines());
}

TEST_F(SharedLinesTest, AllSeeTheLinesOfAllInOneOrder) {
  SharedLines one(path_), other(path_);
  one.add("a");
  other.add("b");
  EXPECT_EQ(one.fresh(), (Lines{"a", "b"}));
  EXPECT_EQ(one.fresh(), Lines());
  one.add("");
  other.add("c d");
  EXPECT_EQ(other.fresh(), (Lines{"a", "b", "", "c d"}));
  EXPECT_EQ(one.fresh(), (Lines{"", "c d"}));
  EXPECT_EQ(read_small_file(path_), "a\nb\n\nc d\n");
}

TEST_F(SharedLinesTest, ATornLineHarmsNoOther) {
  SharedLines lines(path_);
  lines.add("a");
  append("to");
  EXPECT_EQ(lines.fresh(), Lines{"a"});
  append("rn");
  EXPECT_EQ(lines.fresh(), Lines());
  lines.add("b");
  EXPECT_EQ(lines.fresh(), (Lines{"torn", "b"}));
  EXPECT_EQ(read_small_file(path_), "a\ntorn\nb\n");
}

TEST_F(SharedLinesTest, LinesBeyondTheBoundAreLeftOut) {
  SharedLines lines(path_);
  lines.add("a");
  fs::resize_file(path_, 64 << 20);
  append("\nb\n");
  EXPECT_EQ(lines.fresh(), Lines{"a"});
  EXPECT_EQ(lines.fresh(), Lines());
}

TEST_F(SharedLinesTest, ATurnExcludesOthers) {
  const SharedLines one(path_), other(path_);
  SharedLines::Turn turn = one.hold(kAtOnce);
  ASSERT_TRUE(turn.held());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(other.hold(milliseconds(30)).held());
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(30));
  EXPECT_FALSE(one.hold(kAtOnce).held());
  one.add("a");  // which opens and closes the file, but lets go of nothing
  EXPECT_FALSE(other.hold(kAtOnce).held());

  std::thread waiting([&] { EXPECT_TRUE(other.hold(kLong).held()); });
  std::this_thread::sleep_for(milliseconds(20));
  turn = SharedLines::Turn();
  waiting.join();
  EXPECT_TRUE(one.hold(kAtOnce).held());
}

TEST_F(SharedLinesTest, AKilledProcessLetsGo) {
  const SharedLines lines(path_);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = start_child([&] {
    const SharedLines::Turn turn = lines.hold(kAtOnce);
    const char held = turn.held() ? 'y' : 'n';
    for (bool told = ::write(ready[1], &held, 1) == 1; told;) ::pause();
    return false;
  });
  ASSERT_GT(child, 0);
  ::close(ready[1]);
  char held = 'n';
  EXPECT_EQ(::read(ready[0], &held, 1), 1);
  EXPECT_EQ(held, 'y');
  EXPECT_FALSE(lines.hold(kAtOnce).held());
  ::kill(child, SIGKILL);
  EXPECT_TRUE(lines.hold(kLong).held());
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::close(ready[0]);
}

TEST_F(SharedLinesTest, WhoHasATurnKnowsWhatAllHaveAdded) {
  constexpr int kProcesses = 8, kKeys = 50;
  const auto add_all = [&] {
    SharedLines lines(path_);
    std::set<std::string> known;
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = "key " + std::to_string(i);
      const SharedLines::Turn turn = lines.hold(kLong);
      if (!turn.held()) return false;
      for (std::string& line : lines.fresh()) known.insert(std::move(line));
      if (!known.contains(key)) lines.add(key);
    }
    return true;
  };
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) children.push_back(start_child(add_all));
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const Lines all = SharedLines(path_).fresh();
  EXPECT_EQ(all.size(), size_t{kKeys});
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), size_t{kKeys});
}

TEST_F(SharedLinesTest, WhatCannotBeMadeIsNamed) {
  fs::create_directories(folder_);
  const fs::path file = folder_ / "file";
  std::ofstream(file) << "not a folder\n";
  // A file where a folder should be, and a folder where the file should be.
  for (const fs::path& path : {file / "lines", folder_}) {
    SharedLines lines(path);
    EXPECT_EQ(lines.fresh(), Lines());
    for (const auto& action : {std::function([&] { (void)lines.hold(kAtOnce); }),
                               std::function([&] { lines.add("a"); })}) {
      try {
        action();
        ADD_FAILURE() << path;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kStorage);
        EXPECT_NE(std::string(error.what()).find(folder_.string()), std::string::npos)
            << error.what();
      }
    }
  }
}

// /dev/full takes no byte.
TEST(SharedLines, AFullDiskIsAnError) {
  try {
    SharedLines("/dev/full").add("a");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kStorage);
    EXPECT_NE(std::string(error.what()).find("/dev/full: cannot add a line: No space left"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace snug

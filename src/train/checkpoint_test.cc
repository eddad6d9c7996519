#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "model/safetensors.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// Values whose values tell the step and the version they were saved at.
class Values {
 public:
  explicit Values(float value) : weights_(1000, value), moments_(333, std::byte(int(value))) {}

  std::vector<CheckpointTensor> tensors() {
    return {{"weights", DType::kF32, weight_memory_.block()},
            {"empty", DType::kF32, {}},
            {"moments", DType::kU8, moment_memory_.block()}};
  }
  bool all_equal(float value) const {
    return weights_ == std::vector<float>(1000, value) &&
           moments_ == std::vector<std::byte>(333, std::byte(int(value)));
  }
  float value() const { return weights_[0]; }

 private:
  std::vector<float> weights_;
  std::vector<std::byte> moments_;
  HostMemory weight_memory_{std::as_writable_bytes(std::span(weights_))}, moment_memory_{moments_};
};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    std::string name = fs::temp_directory_path() / "snug-checkpoint-XXXXXX";
    root_ = ::mkdtemp(name.data());
    folder_ = root_ / "checkpoints";
    set_quiet(true);
  }
  ~CheckpointTest() override {
    set_quiet(false);
    fs::remove_all(root_);
  }

  void save(uint64_t step, float value, int keep = 2) const {
    Values memory(value);
    save_checkpoint(
        folder_,
        {.step = step, .state = {{"value", value}, {"loss", 0.1}}, .tensors = memory.tensors()},
        keep);
  }

  // The value of a checkpoint, after checking that state and tensors agree.
  static float load(const fs::path& checkpoint) {
    Values memory(-1);
    load_checkpoint_tensors(checkpoint, memory.tensors());
    const float value = read_checkpoint_state(checkpoint).at("value").get<float>();
    EXPECT_TRUE(memory.all_equal(value)) << checkpoint;
    return value;
  }

  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  }

  // What loading says, "" where it works.
  std::string load_error(const fs::path& checkpoint) const {
    try {
      load(checkpoint);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "";
  }

  fs::path root_, folder_;
};

using Names = std::set<std::string>;

void overwrite(const fs::path& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
}

void flip_bit(const fs::path& path, size_t byte) {
  std::string contents = read_small_file(path);
  contents[byte] = char(contents[byte] ^ 4);
  overwrite(path, contents);
}

TEST_F(CheckpointTest, SavesAndLoads) {
  EXPECT_EQ(latest_checkpoint(folder_), std::nullopt);
  save(7, 3);
  EXPECT_EQ(names(), Names{"step-7"});
  const auto latest = latest_checkpoint(folder_);
  ASSERT_EQ(latest, folder_ / "step-7");
  EXPECT_EQ(load(*latest), 3);
  EXPECT_EQ(read_checkpoint_step(*latest), 7u);
  EXPECT_EQ(read_checkpoint_state(*latest).at("loss"), 0.1);
  const SafetensorsFile file(*latest / "tensors.safetensors");  // other programs can read it
  EXPECT_EQ(file.find("weights")->elements(), 1000u);
}

TEST_F(CheckpointTest, KeepsTheNewestByStepNotByTime) {
  save(10, 1);
  save(9, 2);  // written later, but an earlier step; nothing newer is ever retired
  EXPECT_EQ(latest_checkpoint(folder_), folder_ / "step-10");
  save(100, 3);
  EXPECT_EQ(names(), (Names{"step-10", "step-100"}));
  save(101, 4, 1);
  EXPECT_EQ(names(), Names{"step-101"});
  EXPECT_THROW(save(102, 4, 0), Error);
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  save(5, 1);
  save(5, 2);
  EXPECT_EQ(names(), Names{"step-5"});
  EXPECT_EQ(load(folder_ / "step-5"), 2);
}

TEST_F(CheckpointTest, DamageIsNamedAndPassedOver) {
  struct Case {
    const char* what;
    std::function<void(const fs::path&)> damage;
    const char* message;
  };
  const Case cases[] = {
      {"manifest missing", [](const fs::path& c) { fs::remove(c / "manifest.json"); },
       "manifest.json: cannot open"},
      {"tensors missing", [](const fs::path& c) { fs::remove(c / "tensors.safetensors"); },
       "tensors.safetensors: cannot open"},
      {"manifest truncated", [](const fs::path& c) { fs::resize_file(c / "manifest.json", 50); },
       "manifest.json: not valid JSON"},
      {"manifest empty", [](const fs::path& c) { overwrite(c / "manifest.json", "{}"); },
       "not the manifest of a checkpoint"},
      {"tensors truncated",
       [](const fs::path& c) {
         fs::resize_file(c / "tensors.safetensors", fs::file_size(c / "tensors.safetensors") - 1);
       },
       "tensors.safetensors: "},
      {"bit flip in a tensor",
       [](const fs::path& c) {
         flip_bit(c / "tensors.safetensors", fs::file_size(c / "tensors.safetensors") - 400);
       },
       "tensors.safetensors: tensor \"weights\" is damaged, checksum is "},
      {"value changed in the manifest",
       [](const fs::path& c) {
         std::string text = read_small_file(c / "manifest.json");
         text.replace(text.find("\"loss\":0.1"), 10, "\"loss\":0.2");
         overwrite(c / "manifest.json", text);
       },
       "manifest.json: damaged, checksum is "},
      {"other version",
       [](const fs::path& c) {
         std::string text = read_small_file(c / "manifest.json");
         text.replace(text.find("\"version\":1"), 11, "\"version\":9");
         overwrite(c / "manifest.json", text);
       },
       "version is 9, this snug reads version 1"},
      {"manifest of another step",
       [](const fs::path& c) {
         fs::copy_file(c.parent_path() / "step-1/manifest.json", c / "manifest.json",
                       fs::copy_options::overwrite_existing);
       },
       "manifest.json: is of step 1, expected step 2"},
      {"tensors of another step",
       [](const fs::path& c) {
         fs::copy_file(c.parent_path() / "step-1/tensors.safetensors", c / "tensors.safetensors",
                       fs::copy_options::overwrite_existing);
       },
       "tensors.safetensors: tensor \"weights\" is damaged"},
  };
  for (const Case& c : cases) {
    fs::remove_all(folder_);
    save(1, 1);
    save(2, 2);
    c.damage(folder_ / "step-2");
    const std::string message = load_error(folder_ / "step-2");
    EXPECT_NE(message.find(c.message), std::string::npos) << c.what << ": " << message;
    EXPECT_EQ(latest_checkpoint(folder_), folder_ / "step-1") << c.what;
    save(3, 3);
    EXPECT_EQ(latest_checkpoint(folder_), folder_ / "step-3") << c.what;
  }
}

TEST_F(CheckpointTest, AnIncompleteOneDoesNotCountAsKept) {
  save(1, 1);
  save(2, 2);
  fs::remove(folder_ / "step-2/manifest.json");
  save(3, 3);
  EXPECT_EQ(names(), (Names{"step-1", "step-2", "step-3"}));
  save(4, 4);
  EXPECT_EQ(names(), (Names{"step-3", "step-4"}));
}

TEST_F(CheckpointTest, EveryBitFlipIsFoundOrHarmless) {
  Values memory(1);
  const auto small = [&] {
    std::vector<CheckpointTensor> tensors = memory.tensors();
    tensors[0].data.bytes = 16;
    tensors[2].data.bytes = 3;
    return tensors;
  };
  save_checkpoint(folder_, {.step = 1, .state = {{"epoch", 2.5}}, .tensors = small()}, 2);
  const fs::path checkpoint = folder_ / "step-1";
  for (const char* name : {"manifest.json", "tensors.safetensors"}) {
    const std::string whole = read_small_file(checkpoint / name);
    for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string damaged = whole;
      damaged[bit / 8] = char(damaged[bit / 8] ^ 1 << bit % 8);
      overwrite(checkpoint / name, damaged);
      try {
        load_checkpoint_tensors(checkpoint, small());
        EXPECT_TRUE(memory.all_equal(1)) << name << " bit " << bit;
        EXPECT_EQ(read_checkpoint_state(checkpoint), Json({{"epoch", 2.5}}));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput);
        memory = Values(1);
      }
    }
    overwrite(checkpoint / name, whole);
  }
  load_checkpoint_tensors(checkpoint, small());
}

TEST_F(CheckpointTest, RefusesTensorsOfAnotherModelBeforeWritingAny) {
  save(1, 1);
  struct Case {
    std::function<void(std::vector<CheckpointTensor>&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](auto& t) { t[2].name = "momenta"; }, "step-1: has no tensor \"momenta\""},
      {[](auto& t) { t[2].data.bytes = 300; },
       "tensor \"moments\" is 333 bytes of U8, expected 300 of U8"},
      {[](auto& t) { t[2].dtype = DType::kI8; },
       "tensor \"moments\" is 333 bytes of U8, expected 333 of I8"},
      {[](auto& t) { t.pop_back(); }, "holds tensor \"moments\", which this run does not have"},
  };
  for (const Case& c : cases) {
    Values memory(9);
    std::vector<CheckpointTensor> tensors = memory.tensors();
    c.change(tensors);
    try {
      load_checkpoint_tensors(folder_ / "step-1", tensors);
      ADD_FAILURE() << "accepted: " << c.message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(c.message), std::string::npos) << error.what();
    }
    EXPECT_TRUE(memory.all_equal(9));
  }
}

TEST_F(CheckpointTest, CleansOnlyItsOwnLeftovers) {
  save(1, 1);
  for (const char* name : {"step-2.tmp-77", "step-1.tmp-retired", "notes", "step-3.backup"}) {
    fs::create_directories(folder_ / name);
    overwrite(folder_ / name / "tensors.safetensors", "x");
  }
  clean_stale(folder_);
  EXPECT_EQ(names(), (Names{"notes", "step-1", "step-3.backup"}));
  clean_stale(root_ / "absent");
}

TEST_F(CheckpointTest, AnInterruptedReplacementIsSettledEitherWay) {
  save(1, 1);
  fs::rename(folder_ / "step-1", folder_ / "step-1.replaced");
  EXPECT_EQ(latest_checkpoint(folder_), folder_ / "step-1.replaced");
  EXPECT_EQ(load(folder_ / "step-1.replaced"), 1);
  clean_stale(folder_);
  EXPECT_EQ(names(), Names{"step-1"});  // back

  fs::rename(folder_ / "step-1", folder_ / "step-1.replaced");
  save(1, 2);
  EXPECT_EQ(names(), Names{"step-1"});
  EXPECT_EQ(load(folder_ / "step-1"), 2);

  fs::copy(folder_ / "step-1", folder_ / "step-1.replaced");
  fs::remove(folder_ / "step-1/manifest.json");
  clean_stale(folder_);  // the new one is not complete: back
  EXPECT_EQ(load(folder_ / "step-1"), 2);
}

// Runs `action` in a child process; the result is waitpid's.
int in_child(const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      action();
      ::_exit(0);
    } catch (const Error& error) {
      ::_exit(int(error.kind()));
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

struct KillCase {
  const char* name;
  std::vector<uint64_t> before;  // steps saved before, with the step as value
  uint64_t step;                 // saved while being killed, with value 99
  int keep;
};
std::ostream& operator<<(std::ostream& out, const KillCase& c) { return out << c.name; }

class KilledSave : public CheckpointTest, public ::testing::WithParamInterface<KillCase> {};

// Counts the kill points up until the save survives: no point can be forgotten.
TEST_P(KilledSave, LeavesTheOldOrTheNewCheckpointAtEveryPoint) {
  const KillCase& c = GetParam();
  int kills = 0;
  for (bool survived = false; !survived; ++kills) {
    ASSERT_LT(kills, 1000);
    fs::remove_all(folder_);
    for (const uint64_t step : c.before) save(step, float(step), c.keep);
    const int status = in_child([&] {
      ::setenv("SNUG_TEST_KILL_POINT", fmt::format("any:{}", kills + 1).c_str(), 1);
      save(c.step, 99, c.keep);
    });
    survived = WIFEXITED(status);
    ASSERT_TRUE(survived ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << status;

    const auto latest = latest_checkpoint(folder_);
    ASSERT_EQ(latest.has_value() || c.before.empty(), true)
        << "nothing left after point " << kills + 1;
    const float value = latest ? load(*latest) : 0;
    const float old = c.before.empty() ? 0 : float(c.before.back());
    EXPECT_TRUE(value == 99 || (value == old && !survived)) << value << " at point " << kills + 1;
    // The next run cleans up, finds the same, and goes on; killed again while cleaning, too.
    in_child([&] {
      ::setenv("SNUG_TEST_KILL_POINT", "any:2", 1);
      clean_stale(folder_);
    });
    EXPECT_EQ(latest_checkpoint(folder_).has_value(), latest.has_value());
    clean_stale(folder_);
    const auto cleaned = latest_checkpoint(folder_);
    EXPECT_EQ(cleaned ? load(*cleaned) : 0, value);
    save(c.step + 1, 50, c.keep);
    EXPECT_EQ(load(*latest_checkpoint(folder_)), 50);
    EXPECT_LE(int(names().size()), c.keep);
  }
  EXPECT_GT(kills, 15);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, KilledSave,
                         ::testing::Values(KillCase{"First", {}, 1, 2},
                                           KillCase{"Second", {1}, 2, 2},
                                           KillCase{"KeepOne", {1}, 2, 1},
                                           KillCase{"Rotation", {1, 2, 3}, 4, 2},
                                           KillCase{"SameStepAgain", {4}, 4, 1},
                                           KillCase{"SameStepAgainKeepTwo", {3, 4}, 4, 2}),
                         [](const auto& info) { return std::string(info.param.name); });

// A file size limit stands in for a full disk: each limit stops the save at another write.
TEST_F(CheckpointTest, AFullDiskLeavesTheOldCheckpointAndNoRubbish) {
  save(1, 1);
  for (const rlim_t limit : {0, 7, 100, 300, 1000, 4000, 4500}) {
    const int status = in_child([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit only = {limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &only);
      save(2, 2);
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), int(ErrorKind::kStorage)) << limit;
    EXPECT_EQ(names(), Names{"step-1"}) << limit;
    EXPECT_EQ(load(*latest_checkpoint(folder_)), 1);
  }
}

TEST_F(CheckpointTest, TooLittleSpaceIsFoundBeforeWriting) {
  // No memory behind it: never touched, as the check comes first.
  const Block huge{nullptr, 0, size_t{1} << 60};
  try {
    save_checkpoint(folder_, {.step = 1, .state = {}, .tensors = {{"huge", DType::kU8, huge}}}, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kStorage);
    EXPECT_NE(std::string(error.what()).find("a checkpoint needs 11529215046"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(CheckpointTest, AnOutputFolderThatCannotBeWrittenIsAStorageError) {
  overwrite(folder_, "a file");
  try {
    save(1, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kStorage) << error.what();
  }
}

}  // namespace
}  // namespace snug

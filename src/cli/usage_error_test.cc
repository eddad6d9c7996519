#include "cli/usage_error.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> commands = {"plan", "train", "eval", "predict"};
  EXPECT_EQ(nearest("trian", commands), "train");
  EXPECT_EQ(nearest("pridict", commands), "predict");
  EXPECT_EQ(nearest("evaluate", commands), "");
  EXPECT_EQ(nearest("banana", commands), "");
  EXPECT_EQ(nearest("", commands), "");
  EXPECT_EQ(nearest("x", {}), "");
}

struct Parsed {
  CLI::App app{"", "snug"};
  std::string model;
  double rate = 0;

  Parsed() {
    app.require_subcommand(1);
    CLI::App* command = app.add_subcommand("train", "");
    command->add_option("--model", model)->required();
    command->add_option("--learning-rate,--learning_rate", rate);
    app.add_subcommand("eval", "");
  }
  Error error(const std::string& line) {
    try {
      app.parse(line);
    } catch (const CLI::ParseError& error) {
      return usage_error(app, error);
    }
    return Error(ErrorKind::kInput, "parsed");
  }
};

TEST(UsageError, NamesTheCommandThatIsNotThere) {
  const Error error = Parsed().error("trian --model x");
  EXPECT_STREQ(error.what(), "snug has no command 'trian'");
  EXPECT_EQ(error.hint(), "did you mean train? snug --help lists the commands");
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_STREQ(Parsed().error("").what(), "say what snug shall do");
}

TEST(UsageError, NamesTheFlagThatIsNotThereBeforeTheOneThatIsMissing) {
  const Error error = Parsed().error("train --modle x");
  EXPECT_STREQ(error.what(), "snug train has no flag --modle");
  EXPECT_EQ(error.hint(), "did you mean --model? snug train --help explains its flags");
  EXPECT_EQ(Parsed().error("train --model x --learnig_rate=1").hint(),
            "did you mean --learning-rate? snug train --help explains its flags");
  EXPECT_STREQ(Parsed().error("train --model x y").what(), "snug train: 'y' belongs to no flag");
}

TEST(UsageError, SaysWhatIsMissingOrWrong) {
  EXPECT_STREQ(Parsed().error("train").what(), "snug train: --model is required");
  EXPECT_STREQ(Parsed().error("train --model x --learning-rate fast").what(),
               "snug train: Could not convert: --learning-rate = fast");
}

}  // namespace
}  // namespace snug

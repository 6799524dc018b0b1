#include "lab/recipes/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "demi/core/error.h"
#include "lab/settings/config_source.h"
#include "lab/settings/recipe.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunRecords : public ::testing::Test {
 protected:
  RunRecords() : root_(fs::temp_directory_path() / ("demi-records-" + std::to_string(getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~RunRecords() override { fs::remove_all(root_); }

  fs::path make(const std::string& name, const std::string& config, bool finished = false) const {
    fs::create_directories(root_ / name);
    std::ofstream(root_ / name / "config.json") << config;
    if (finished) std::ofstream(root_ / name / std::string(kResultFile)) << "{}";
    return root_ / name;
  }

  static RunRecord record() {
    RunRecord record{.command = "compare",
                     .line = "demi compare mlp --runs fp32,fp16:scale=128",
                     .recipe = "mlp",
                     .runs = {"fp32", "fp16:scale=128"},
                     .turn_steps = 7,
                     .config = settings::find_recipe("mlp").config};
    record.config.lr = 0.1 + 0.2;  // 0.30000000000000004
    record.config.checkpoint_every = "2epochs";
    return record;
  }

  fs::path root_;
};

TEST_F(RunRecords, ComeBackAsTheyWereWritten) {
  const RunRecord back = read_run_record(make("compare-mlp-001", to_json(record())));
  EXPECT_EQ(back.command, "compare");
  EXPECT_EQ(back.line, record().line);
  EXPECT_EQ(back.recipe, "mlp");
  EXPECT_EQ(back.runs, record().runs);
  EXPECT_EQ(back.turn_steps, 7);
  EXPECT_EQ(settings::to_json(back.config), settings::to_json(record().config));
  EXPECT_EQ(back.config.lr, 0.1 + 0.2) << "bit for bit";
}

TEST_F(RunRecords, ThatAreMissingOrDamagedAreDataErrors) {
  EXPECT_THROW(read_run_record(root_), DataError);
  const std::string whole = to_json(record());
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"), std::string("{}"),
        std::string(R"({"command": 3, "recipe": "mlp", "runs": []})"),
        std::string(R"({"command": "demi train mlp", "recipe": "mlp", "runs": "fp32"})")})
    EXPECT_THROW(read_run_record(make("broken", text)), DataError) << text;
}

std::string refusal(const fs::path& folder) {
  try {
    read_run_record(folder);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(RunRecords, ThatAnotherDemiWroteOrThatMayNotBeReadAreNotCalledDamaged) {
  const fs::path folder = make("of-another", R"({"command": "demi train mlp", "recipe": "mlp",
    "runs": ["fp32"], "shiny": 3})");
  EXPECT_THAT(
      refusal(folder),
      AllOf(HasSubstr("config.json has a setting that this demi does not know; seen: shiny"),
            HasSubstr("another demi, perhaps a newer one"), Not(HasSubstr("damaged"))));
  fs::remove(folder / "config.json");
  fs::create_symlink("config.json", folder / "config.json");
  EXPECT_THAT(refusal(folder),
              AllOf(HasSubstr("cannot be read"), HasSubstr("Too many levels of symbolic links")));
  // The folder to look into has a name, whatever the run's was.
  EXPECT_THAT(refusal("none"), HasSubstr("look into " + fs::current_path().string() + " for"));
  EXPECT_THAT(refusal(root_ / "none/"), HasSubstr("look into " + root_.string() + " for"));
}

TEST_F(RunRecords, TheNewestUnfinishedIsFoundByCommandAndRecipe) {
  const std::string text = to_json(record());
  const auto newest = [&]() -> fs::path {
    const auto all = unfinished("compare", "mlp", root_);
    return all.empty() ? fs::path() : all.front();
  };
  EXPECT_EQ(newest(), "");
  make("compare-mlp-002", text);
  make("compare-mlp-010", text);
  make("compare-mlp-011", text, /*finished=*/true);
  fs::create_directories(root_ / "compare-mlp-012");  // killed before it began
  make("compare-mlp-cnn-099", text);
  make("train-mlp-099", text);
  EXPECT_THAT(unfinished("compare", "mlp", root_),
              ::testing::ElementsAre(root_ / "compare-mlp-010", root_ / "compare-mlp-002"));
  // It has a report and no checkpoints: it would be trained anew, over what it left.
  std::ofstream(make("compare-mlp-013", text) / "report.html") << "";
  EXPECT_FALSE(can_resume(root_ / "compare-mlp-013"));
  EXPECT_EQ(newest(), root_ / "compare-mlp-010");
  const fs::path checkpoints = root_ / "compare-mlp-013" / std::string(kCheckpoints);
  fs::create_directories(checkpoints / "fp32");
  EXPECT_EQ(newest(), root_ / "compare-mlp-010") << "they were removed";
  std::ofstream(checkpoints / "fp32/last") << "";
  EXPECT_EQ(newest(), root_ / "compare-mlp-013");
}

}  // namespace
}  // namespace demi::recipes

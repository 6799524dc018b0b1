#include "lab/settings/config_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "demi/core/error.h"
#include "lab/settings/recipe.h"

namespace demi::settings {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ConfigFile : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(file_) << text; }
  void TearDown() override { std::filesystem::remove(file_); }

  std::filesystem::path file_ = std::filesystem::temp_directory_path() / "demi_config_test.json";
};

template <class Call>
std::string complaint_in(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

// Every value of every recipe comes back from its file as it was: what a run saved can be given
// back.
TEST_F(ConfigFile, GivesBackWhatWasWritten) {
  for (const Recipe& recipe : recipes()) {
    Config odd = recipe.config;
    odd.lr = 0.1 + 0.2;  // needs all 17 digits
    odd.horizontal_flip = !odd.horizontal_flip;
    odd.fp32_part = "layer4,fc";
    odd.loss_scale = "128";
    write(to_json(odd));
    Config read;
    for (const Assignment& a : read_config_file(file_).values) set(read, a.name, a.text, a.source);
    for (const Setting& setting : all_settings())
      EXPECT_EQ(setting.get(read), setting.get(odd)) << recipe.name << ": " << setting.name;
    EXPECT_EQ(read.lr, odd.lr);
  }
}

TEST_F(ConfigFile, SaysWhatIsWrongInIt) {
  const auto complaint = [&](const std::string& text) -> std::string {
    write(text);
    try {
      read_config_file(file_);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(complaint("{\"leanring_rate\": 1}"), HasSubstr("no such setting"));
  EXPECT_THAT(complaint("{\"epoch\": 1}"), HasSubstr("did you mean epochs?"));
  EXPECT_THAT(complaint("{\"learning_rate\": 1}"), HasSubstr("did you mean lr?"));
  EXPECT_THAT(complaint("{\"lr\": 1, \"lr\": 2}"), HasSubstr("lr: the name stands twice"));
  EXPECT_THAT(complaint("{\"batch-size\": 1, \"batch_size\": 2}"),
              HasSubstr("says a setting twice; seen: batch_size"));
  EXPECT_THAT(complaint("{\"batch_size\": 1, \"batch-size\": 2}"), HasSubstr("batch_size"));
  EXPECT_THAT(complaint("{\"lr\": [1, 2]}"), HasSubstr("not a plain value"));
  EXPECT_THAT(complaint("{\"lr\": 1"), HasSubstr("is not JSON"));
  EXPECT_THAT(complaint("[1]"), HasSubstr("no JSON object"));
  EXPECT_EQ(complaint("{\"recipe\": \"mlp\", \"runs\": [\"fp32\"], \"lr\": 1}"), "");
  EXPECT_EQ(read_config_file(file_).recipe, "mlp");
  std::filesystem::remove(file_);
  EXPECT_THROW(read_config_file(file_), UsageError);
}

// A folder that is called 2.10 is not 2.1, and epochs of 2.0 are 2.
TEST_F(ConfigFile, KnowsWordsFromNumbers) {
  Config config;
  config.data_dir = "2.10";
  config.fp32_part = "-0";
  write(to_json(config));
  Config read;
  for (const Assignment& a : read_config_file(file_).values) set(read, a.name, a.text, a.source);
  EXPECT_EQ(read.data_dir, "2.10");
  EXPECT_EQ(read.fp32_part, "-0");
  write(R"({"epochs": 2.0, "data_dir": 2.10})");
  for (const Assignment& a : read_config_file(file_).values) set(read, a.name, a.text, a.source);
  EXPECT_EQ(read.epochs, 2);
}

TEST_F(ConfigFile, OfAComparisonNamesItsRuns) {
  write(R"({"command": "demi compare mlp", "runs": ["bf16", "fp16:scale=128"], "interleave": 4})");
  const ComparedRuns found = read_config_file(file_).runs;
  EXPECT_TRUE(found.is_comparison);
  EXPECT_EQ(found.runs, (std::vector<std::string>{"bf16", "fp16:scale=128"}));
  EXPECT_EQ(found.turn_steps, 4);
  write(R"({"command": "demi train mlp", "runs": ["bf16"]})");
  EXPECT_FALSE(read_config_file(file_).runs.is_comparison);
  write(R"({"runs": 3})");
  EXPECT_THROW(read_config_file(file_), UsageError);
}

TEST(ConfigEnvironment, VariablesNameTheirSetting) {
  ASSERT_EQ(setenv("DEMI_BATCH_SIZE", "96", 1), 0);
  const auto found = read_environment();
  unsetenv("DEMI_BATCH_SIZE");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "batch-size");
  EXPECT_EQ(found[0].text, "96");
  EXPECT_EQ(found[0].source, "DEMI_BATCH_SIZE");
}

TEST(ConfigSource, AFolderAndARecipeThatIsNoNameAreSaid) {
  const fs::path file = fs::temp_directory_path() / "demi_config_limits_test.json";
  const auto of_text = [&](const std::string& text) {
    std::ofstream(file) << text;
    return complaint_in([&] { read_config_file(file); });
  };
  EXPECT_NE(complaint_in([] { read_config_file(fs::temp_directory_path()); }).find("is a folder"),
            std::string::npos);
  for (const char* recipe : {"3", "null", "[\"mlp\"]", "{}", "true"}) {
    const std::string text = of_text(std::string("{\"recipe\": ") + recipe + "}");
    EXPECT_NE(text.find("is not a name"), std::string::npos) << text;
  }
  EXPECT_NE(of_text("").find("is not JSON"), std::string::npos);
  std::ofstream(file) << R"({"recipe": "mlp", "lr": 0.5})";
  EXPECT_EQ(read_config_file(file).recipe, "mlp");
  EXPECT_EQ(read_config_file(file).values.size(), 1u);
  fs::remove(file);
}

}  // namespace
}  // namespace demi::settings

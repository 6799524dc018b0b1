#include "lab/recipes/config_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "demi/core/error.h"
#include "lab/recipes/recipe.h"

namespace demi::train {
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
    for (const Assignment& a : read_config_file(file_)) set(read, a.name, a.text, a.source);
    for (const Setting& setting : settings())
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
  EXPECT_THAT(complaint("{\"lr\": [1, 2]}"), HasSubstr("not a plain value"));
  EXPECT_THAT(complaint("{\"lr\": 1"), HasSubstr("is not JSON"));
  EXPECT_THAT(complaint("[1]"), HasSubstr("no JSON object"));
  EXPECT_EQ(complaint("{\"recipe\": \"mlp\", \"runs\": [\"fp32\"], \"lr\": 1}"), "");
  EXPECT_EQ(recipe_of_config_file(file_), "mlp");
  std::filesystem::remove(file_);
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
    return complaint_in([&] { recipe_of_config_file(file); });
  };
  EXPECT_NE(complaint_in([] { read_config_file(fs::temp_directory_path()); }).find("is a folder"),
            std::string::npos);
  for (const char* recipe : {"3", "null", "[\"mlp\"]", "{}", "true"}) {
    const std::string text = of_text(std::string("{\"recipe\": ") + recipe + "}");
    EXPECT_NE(text.find("is not a name"), std::string::npos) << text;
  }
  EXPECT_NE(of_text("").find("is not JSON"), std::string::npos);
  std::ofstream(file) << R"({"recipe": "mlp", "lr": 0.5})";
  EXPECT_EQ(recipe_of_config_file(file), "mlp");
  EXPECT_EQ(read_config_file(file).size(), 1u);
  fs::remove(file);
}

}  // namespace
}  // namespace demi::train

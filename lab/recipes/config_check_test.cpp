// Settings that cannot be together, and files of settings that are none.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "demi/core/error.h"
#include "lab/recipes/config.h"
#include "lab/recipes/recipe.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;

template <class Call>
std::string complaint(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(ConfigChecks, AScheduleMustNotEndBeforeTrainingDoes) {
  Config config = find_recipe("fashion-cnn").config;  // one-cycle over its 3 epochs
  EXPECT_NO_THROW(check(config));
  config.schedule_epochs = 3;
  EXPECT_NO_THROW(check(config));
  config.schedule_epochs = 2;
  const std::string text = complaint([&] { check(config); });
  EXPECT_NE(text.find("--schedule one-cycle --schedule-epochs 2 --epochs 3"), std::string::npos)
      << text;
  config.schedule = "constant";
  EXPECT_NO_THROW(check(config));
  for (const Recipe& recipe : recipes()) {
    Config own = recipe.config;
    if (own.data == "folder") own.data_dir = "somewhere";
    EXPECT_NO_THROW(check(own)) << recipe.name;
  }
}

TEST(ConfigChecks, AFolderAndARecipeThatIsNoNameAreSaid) {
  const fs::path file = fs::temp_directory_path() / "demi_config_limits_test.json";
  const auto of_text = [&](const std::string& text) {
    std::ofstream(file) << text;
    return complaint([&] { recipe_of_config_file(file); });
  };
  EXPECT_NE(complaint([] { read_config_file(fs::temp_directory_path()); }).find("is a folder"),
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

// docs/published_results.md and docs/reference/train.md hold the tables that the code has
// (DEMI_WRITE_DOCS=1 writes them), docs/reference/environment.md the variables that are read.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "demi/core/source_dir_testing.h"
#include "lab/report/markdown_testing.h"
#include "lab/results/published.h"
#include "lab/settings/config_source.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/recipe.h"

namespace demi::settings {
namespace {

std::string recipe_table() {
  std::string text =
      "| recipe | model | data | epochs | batch | optimizer | learning rate | schedule | loss |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  for (const Recipe& recipe : recipes()) {
    const Config& c = recipe.config;
    text += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |\n", recipe.name, c.model,
                        c.data, c.epochs, c.batch_size, c.optimizer, c.lr, c.schedule, c.loss);
  }
  return text;
}

std::string setting_tables() {
  std::string text, group;
  for (const Setting& setting : all_settings()) {
    if (setting.group != group) {
      group = setting.group;
      text += fmt::format("\n### {}\n\n| setting | default | |\n|---|---|---|\n", group);
    }
    text += fmt::format("| `{}` | {} | {} |\n", setting.name, setting.get(Config()), setting.help);
  }
  return text + "\n";
}

std::string published_text() {
  std::string text;
  for (const results::Published& one : results::published())
    text.append("\n").append(report::to_markdown(one.table));
  return text + "\n";
}

const std::filesystem::path kRoot = source_dir();

std::string text_of(const std::filesystem::path& path) {
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  return file.str();
}

// Expects `text` in the page between <!-- name --> and <!-- end of name -->.
void expect_in_page(const std::string& page, const std::string& name, const std::string& text) {
  const auto path = kRoot / "docs" / page;
  const std::string all = text_of(path);
  const std::string begin = "<!-- " + name + " -->\n", end = "<!-- end of " + name + " -->";
  const auto first = all.find(begin), last = all.find(end);
  ASSERT_NE(first, std::string::npos) << path << " has no " << begin;
  ASSERT_NE(last, std::string::npos) << path << " has no " << end;
  const auto start = first + begin.size();
  const char* write = std::getenv("DEMI_WRITE_DOCS");
  if (write && *write == '1')
    std::ofstream(path) << all.substr(0, start) << text << all.substr(last);
  else
    EXPECT_EQ(all.substr(start, last - start), text)
        << "DEMI_WRITE_DOCS=1 demi_lab_recipes_test --gtest_filter='Docs.*' writes it again";
}

TEST(Docs, TheRecipesAreTheCodes) {
  expect_in_page("reference/train.md", "recipes", recipe_table());
}

TEST(Docs, EveryOptimizerHasItsRow) {
  const std::string page = text_of(kRoot / "docs/reference/optim.md");
  for (const OptimizerKind& kind : optimizer_kinds()) {
    EXPECT_NE(page.find("| `" + kind.class_name + "` |"), std::string::npos) << kind.name;
  }
}

TEST(Docs, TheSettingsAreTheCodes) {
  expect_in_page("reference/train.md", "settings", setting_tables());
}

/// All words of the form DEMI_X between `before` and `after`.
std::set<std::string> variables_in(const std::string& text, const std::string& before,
                                   const std::string& after) {
  std::set<std::string> found;
  const std::regex form(before + "(DEMI_[A-Z_0-9]+)" + after);
  for (std::sregex_iterator it(text.begin(), text.end(), form), end; it != end; ++it)
    found.insert((*it)[1]);
  return found;
}

// The page has this rule in place of a row for each setting.
TEST(Docs, ASettingsVariableIsItsNameInCapitals) {
  const std::string page = text_of(kRoot / "docs/reference/environment.md");
  EXPECT_NE(page.find("`DEMI_BATCH_SIZE` is `batch-size`"), std::string::npos);
  for (const Setting& setting : all_settings()) {
    std::string name = "DEMI_";
    for (const char c : setting.name) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    EXPECT_EQ(environment_variable(setting.name), name);
  }
}

// DEMI_DATA was the folder in the docs and the setting `data` in the code.
TEST(Docs, NoSettingsVariableMeansSomethingElse) {
  const std::string page = text_of(kRoot / "docs/reference/environment.md");
  const auto reserved = variables_in(page, "\n\\| `", "` \\|");
  EXPECT_GE(reserved.size(), 13U) << "the page's tables are not read";
  for (const Setting& setting : all_settings())
    EXPECT_FALSE(reserved.contains(environment_variable(setting.name))) << setting.name;
}

TEST(Docs, EveryVariableThatIsReadIsInThePage) {
  auto in_page = variables_in(text_of(kRoot / "docs/reference/environment.md"), "\n\\| `", "` \\|");
  for (const Setting& setting : all_settings()) in_page.insert(environment_variable(setting.name));
  std::size_t read = 0;
  for (const char* folder : {"demi", "lab", "cli", "tests"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / folder)) {
      const std::string ending = entry.path().extension().string();
      if (ending != ".cpp" && ending != ".h" && ending != ".cu") continue;
      const std::string code = text_of(entry.path());
      for (const char* call : {"getenv\\(\"", "from_environment\\(\""})
        for (const std::string& variable : variables_in(code, call, "\"")) {
          ++read;
          EXPECT_TRUE(in_page.contains(variable))
              << variable << " in " << entry.path() << ": add it to docs/reference/environment.md";
        }
    }
  EXPECT_GE(read, 8U) << "the sources are not read";
}

TEST(Docs, ThePublishedTablesAreTheCodes) {
  expect_in_page("published_results.md", "tables", published_text());
}

}  // namespace
}  // namespace demi::settings

// docs/published_results.md and docs/reference/train.md hold the tables that the code has.
// DEMI_WRITE_DOCS=1 writes them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "demi/train/config.h"
#include "demi/train/published.h"
#include "demi/train/recipe.h"

namespace demi::train {
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
  for (const Setting& setting : settings()) {
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
  for (const Published& one : published()) text.append("\n").append(report::to_markdown(one.table));
  return text + "\n";
}

// What stands in the page between <!-- name --> and <!-- end of name --> is `text`.
void expect_in_page(const std::string& page, const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../docs" / page;
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  const std::string all = file.str();
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
        << "DEMI_WRITE_DOCS=1 demi_train_test --gtest_filter='Docs.*' writes it anew";
}

TEST(Docs, TheRecipesAreTheCodes) {
  expect_in_page("reference/train.md", "recipes", recipe_table());
}

TEST(Docs, TheSettingsAreTheCodes) {
  expect_in_page("reference/train.md", "settings", setting_tables());
}

TEST(Docs, ThePublishedTablesAreTheCodes) {
  expect_in_page("published_results.md", "tables", published_text());
}

}  // namespace
}  // namespace demi::train

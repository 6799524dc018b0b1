#include "lab/doctor/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "demi/core/source_dir_testing.h"

namespace demi::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string page() {
  std::stringstream text;
  text << std::ifstream(source_dir() / "docs/reference/environment.md").rdbuf();
  return text.str();
}

// The page is the truth: a test of lab/recipes holds it to the sources.
TEST(Variables, AreThoseOfThePage) {
  const std::string text = page();
  const std::string part = text.substr(0, text.find("## Scripts"));
  std::set<std::string> in_page;
  const std::regex row("\n\\| `(DEMI_[A-Z0-9_]+)` \\|"), other("`([A-Z][A-Z_]+)`");
  for (std::sregex_iterator it(part.begin(), part.end(), row), end; it != end; ++it)
    in_page.insert((*it)[1]);
  const std::string others = part.substr(part.find("Variables of others"));
  for (std::sregex_iterator it(others.begin(), others.end(), other), end; it != end; ++it)
    in_page.insert((*it)[1]);
  std::set<std::string> listed;
  for (const Variable& one : variables([](const std::string&) { return std::nullopt; }))
    listed.insert(one.name);
  EXPECT_EQ(listed, in_page);
}

TEST(Variables, HaveTheirValuesAndThoseOfSettingsThatAreSet) {
  const std::map<std::string, std::string> set{{"DEMI_KERNELS", "avx2"}, {"DEMI_LR", "0.5"}};
  std::map<std::string, std::string> seen;
  for (const Variable& one : variables([&](const std::string& name) {
         const auto found = set.find(name);
         return found == set.end() ? std::nullopt : std::optional(found->second);
       }))
    if (one.value) seen[one.name] = *one.value;
  EXPECT_EQ(seen, set);
}

TEST(Variables, ThatNothingReadsAreNamedWithTheNearest) {
  EXPECT_THAT(unknown_variables({"DEMI_KERNEL", "PATH", "DEMI_LR", "DEMI_KERNELS", "DEMI_JOBS"}),
              ElementsAre("DEMI_KERNEL: nothing reads it; did you mean DEMI_KERNELS?"));
  EXPECT_THAT(unknown_variables({"DEMI_COMPLETELY_OTHER"}),
              ElementsAre("DEMI_COMPLETELY_OTHER: nothing reads it"));
  EXPECT_THAT(unknown_variables({}), IsEmpty());
}

// The page's lists of tests and scripts are known, too.
TEST(Variables, OfTestsAndScriptsAreKnown) {
  const std::string text = page();
  const auto begin = text.find("## Scripts");
  const std::string part = text.substr(begin, text.find("## Settings") - begin);
  const std::regex name("`(DEMI_[A-Z0-9_]+)`");
  std::vector<std::string> names;
  for (std::sregex_iterator it(part.begin(), part.end(), name), end; it != end; ++it)
    names.push_back((*it)[1]);
  EXPECT_GE(names.size(), 12U);
  std::erase(names, "DEMI_CUDA");  // an option of CMake: -DDEMI_CUDA=OFF
  EXPECT_THAT(unknown_variables(names), IsEmpty());
}

}  // namespace
}  // namespace demi::doctor

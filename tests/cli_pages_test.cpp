// The output that pages show is the one that a program prints. A block of a page
//
//     ```console
//     $ demi number -314.625 --format fp32
//     ...
//     ```
//
// holds one command and its output: demi's, or that of a program in examples/, whose path in the
// build may stand before it, and whose warnings are the machine's and left out. DEMI_WRITE_DOCS=1
// writes the outputs again.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/source_dir_testing.h"
#include "tests/cli_testing.h"

namespace cli_testing {
namespace {

// Words, of which those in single quotes may have blanks.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  bool in_word = false, quoted = false;
  for (const char c : line) {
    if (c == ' ' && !quoted) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == '\'') {
      quoted = !quoted;
    } else {
      words.back() += c;
    }
  }
  return words;
}

// Without blanks and line ends, which a formatter moves.
std::string squeezed(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c); });
  return text;
}

std::string source(const std::string& path) { return slurp(demi::source_dir() / path); }

class Pages : public Cli {
 protected:
  Pages() {
    if (const char* folder = std::getenv("DEMI_EXAMPLE_PROGRAMS")) examples_ = folder;
  }

  std::filesystem::path examples_;

  void expect_outputs(const std::string& page, int at_least) {
    const auto path = demi::source_dir() / "docs" / page;
    const std::string begin = "```console\n$ ", end = "```\n";
    std::string text = slurp(path);
    const std::string before = text;
    int blocks = 0;
    for (std::size_t at = 0; (at = text.find(begin, at)) != std::string::npos; ++blocks) {
      at += begin.size();
      const std::size_t line_end = text.find('\n', at);
      const std::size_t block_end = text.find(end, line_end);
      ASSERT_NE(block_end, std::string::npos) << page;
      const std::string command = text.substr(at, line_end - at);
      const std::string shown = text.substr(line_end + 1, block_end - line_end - 1);
      const std::string printed = output_of(command);
      if (!writes()) {
        EXPECT_EQ(shown, printed) << command << "\nDEMI_WRITE_DOCS=1 cli_pages_test writes it anew";
      }
      text.replace(line_end + 1, shown.size(), printed);
    }
    EXPECT_GE(blocks, at_least) << page;
    if (writes() && text != before) std::ofstream(path) << text;
  }

 private:
  std::string output_of(const std::string& command) {
    std::vector<std::string> words = words_of(command);
    const std::string program = words.front();
    words.erase(words.begin());
    const auto in_utf8 = [] { setenv("LC_ALL", "C.UTF-8", /*overwrite=*/1); };
    if (program != "demi") {
      const auto name = std::filesystem::path(program).filename();
      return run(words, in_utf8, (examples_ / name).string()).out;
    }
    const Outcome outcome = run(words, in_utf8);
    return outcome.out + outcome.err;
  }

  static bool writes() {
    const char* write = std::getenv("DEMI_WRITE_DOCS");
    return write != nullptr && *write == '1';
  }
};

TEST_F(Pages, Number) { expect_outputs("reference/number.md", 5); }

TEST_F(Pages, Doctor) { expect_outputs("reference/doctor.md", 3); }

TEST_F(Pages, Profiler) { expect_outputs("reference/profiler.md", 4); }

TEST_F(Pages, Concepts) { expect_outputs("guide/concepts.md", 2); }

TEST_F(Pages, Readme) {
  if (!std::filesystem::exists(examples_ / "loss_scaling")) GTEST_SKIP() << "no examples are built";
  expect_outputs("../README.md", 1);
}

TEST_F(Pages, Pitfalls) {
  if (!std::filesystem::exists(examples_ / "pitfalls")) GTEST_SKIP() << "no examples are built";
  expect_outputs("guide/pitfalls.md", 8);
}

// Each block of code is a part of the program in its language.
TEST(Guide, FirstLinesAreThoseOfTheirPrograms) {
  const std::string page = source("docs/guide/first_lines.md");
  int blocks = 0;
  for (const std::string language : {"cpp", "python"}) {
    const std::string begin = "```" + language + "\n";
    const std::string program =
        source("examples/first_lines" + std::string(language == "cpp" ? ".cpp" : ".py"));
    for (std::size_t at = 0; (at = page.find(begin, at)) != std::string::npos; ++blocks) {
      at += begin.size();
      const std::string block = page.substr(at, page.find("```\n", at) - at);
      EXPECT_NE(program.find(block), std::string::npos) << block;
    }
  }
  EXPECT_EQ(blocks, 6);
}

TEST(Guide, FromLibTorchIsItsProgram) {
  const std::string page = source("docs/guide/from_libtorch.md");
  const std::string program = source("examples/from_libtorch.cpp"), begin = "```cpp\n";
  int blocks = 0;
  for (std::size_t at = 0; (at = page.find(begin, at)) != std::string::npos; ++blocks) {
    at += begin.size();
    const std::string block = page.substr(at, page.find("```\n", at) - at);
    EXPECT_NE(program.find(block), std::string::npos) << block;
  }
  EXPECT_GE(blocks, 10);
}

TEST(Guide, AutocastGuardIsItsPrograms) {
  const std::string page = source("docs/guide/autocast_guard.md"), begin = "```cpp\n";
  const std::string programs = source("examples/autocast_guard/libtorch_alone.cpp") +
                               source("examples/autocast_guard/with_demi.cpp");
  int blocks = 0;
  for (std::size_t at = 0; (at = page.find(begin, at)) != std::string::npos; ++blocks) {
    at += begin.size();
    const std::string block = page.substr(at, page.find("```\n", at) - at);
    EXPECT_NE(programs.find(block), std::string::npos) << block;
  }
  EXPECT_EQ(blocks, 3);
}

// Each block of C++ is one of the files whole.
TEST(Guide, AddOptimizerIsItsFiles) {
  const std::string page = source("docs/guide/add_optimizer.md");
  const std::string folder = "examples/add_optimizer/";
  for (const std::string file :
       {"demi/kernels/rules/yogi.h", "demi/optim/yogi.h", "demi/optim/yogi.cpp", "rules.h"})
    EXPECT_NE(page.find("```cpp\n" + source(folder + file) + "```\n"), std::string::npos) << file;
}

// The code of a cell of a table, which stands between backticks; empty if there is other text.
std::string code_of(const std::string& cell) {
  const std::size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
  const bool is_code = begin != end && cell[begin] == '`' && cell.find('`', begin + 1) == end;
  return is_code ? squeezed(cell.substr(begin + 1, end - begin - 1)) : "";
}

// Each line of the tables is one of the two programs, or of the examples that the page names. The
// tables of whole frameworks and of functions of one's own have Python lines that no program here
// runs.
TEST(Guide, LinesFromPythonAreThoseOfTheirPrograms) {
  const std::string python = squeezed(source("examples/from_python.py"));
  std::string cpp;
  for (const std::string name : {"from_python", "custom_function", "custom_operator"})
    cpp += squeezed(source("examples/" + name + ".cpp"));
  std::istringstream page(source("docs/guide/from_python.md"));
  std::string line, title;
  int rows = 0;
  while (std::getline(page, line)) {
    if (line.starts_with("## ")) title = line.substr(3);
    if (!line.starts_with("| `") || title == "Whole frameworks") continue;
    const std::size_t middle = line.find(" | ");
    const std::string left = code_of(line.substr(1, middle - 1));
    const std::string right = code_of(line.substr(middle + 2, line.rfind('|') - middle - 2));
    EXPECT_FALSE(left.empty() || right.empty()) << line;
    if (title != "Functions and operators of your own") {
      EXPECT_NE(python.find(left), std::string::npos) << line;
    }
    EXPECT_NE(cpp.find(right), std::string::npos) << line;
    ++rows;
  }
  EXPECT_GE(rows, 25);
}

}  // namespace
}  // namespace cli_testing

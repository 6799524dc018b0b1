// What pages show of a program's output is what it prints. A block of a page
//
//     ```console
//     $ demi number -314.625 --format fp32
//     ...
//     ```
//
// holds one command and its output: demi's, or that of a program in examples/, whose warnings are
// the machine's and left out. DEMI_WRITE_DOCS=1 writes the outputs anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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
    if (program != "demi") return run(words, in_utf8, (examples_ / program).string()).out;
    const Outcome outcome = run(words, in_utf8);
    return outcome.out + outcome.err;
  }

  static bool writes() {
    const char* write = std::getenv("DEMI_WRITE_DOCS");
    return write != nullptr && *write == '1';
  }
};

TEST_F(Pages, Number) { expect_outputs("reference/number.md", 4); }

TEST_F(Pages, Doctor) { expect_outputs("reference/doctor.md", 3); }

TEST_F(Pages, Concepts) { expect_outputs("guide/concepts.md", 1); }

TEST_F(Pages, Pitfalls) {
  if (!std::filesystem::exists(examples_ / "pitfalls")) GTEST_SKIP() << "no examples are built";
  expect_outputs("guide/pitfalls.md", 8);
}

}  // namespace
}  // namespace cli_testing

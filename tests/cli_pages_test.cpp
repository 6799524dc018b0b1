// What pages show of the program's output is what it prints. A block of a page
//
//     ```console
//     $ demi number -314.625 --format fp32
//     ...
//     ```
//
// holds one command and its output. DEMI_WRITE_DOCS=1 writes the outputs anew.
#include <gtest/gtest.h>

#include <cstdlib>
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
  void expect_outputs(const std::string& page, int at_least) {
    const auto path = demi::source_dir() / "docs" / page;
    const std::string begin = "```console\n$ demi ", end = "```\n";
    std::string text = slurp(path);
    const std::string before = text;
    int blocks = 0;
    for (std::size_t at = 0; (at = text.find(begin, at)) != std::string::npos; ++blocks) {
      at += begin.size();
      const std::size_t line_end = text.find('\n', at);
      const std::size_t block_end = text.find(end, line_end);
      ASSERT_NE(block_end, std::string::npos) << page;
      const std::string command = text.substr(at, line_end - at);
      const Outcome outcome =
          run(words_of(command), [] { setenv("LC_ALL", "C.UTF-8", /*overwrite=*/1); });
      const std::string shown = text.substr(line_end + 1, block_end - line_end - 1);
      const std::string printed = outcome.out + outcome.err;
      if (!writes()) {
        EXPECT_EQ(shown, printed) << "demi " << command
                                  << "\nDEMI_WRITE_DOCS=1 cli_pages_test writes it anew";
      }
      text.replace(line_end + 1, shown.size(), printed);
    }
    EXPECT_GE(blocks, at_least) << page;
    if (writes() && text != before) std::ofstream(path) << text;
  }

 private:
  static bool writes() {
    const char* write = std::getenv("DEMI_WRITE_DOCS");
    return write != nullptr && *write == '1';
  }
};

TEST_F(Pages, Number) { expect_outputs("reference/number.md", 4); }

}  // namespace
}  // namespace cli_testing

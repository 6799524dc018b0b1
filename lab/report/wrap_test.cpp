#include "lab/report/wrap.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace demi::report {
namespace {

TEST(Wrap, WhatFollowsStandsBelowTheFirstWord) {
  EXPECT_EQ(wrapped("one two three four five six", 4, 24), "one two three four\n    five six\n");
  EXPECT_EQ(wrapped("one two", 0, 0), "one two\n") << "a file";
  EXPECT_EQ(wrapped("", 4, 24), "\n");
  EXPECT_EQ(wrapped("0123456789012345678901234", 0, 20), "01234567890123456789\n01234\n");
}

TEST(Wrap, AMessageIsWrappedLineByLine) {
  const std::string text = "a note that is somewhat longer than its line\nshort";
  EXPECT_EQ(message_lines("note: ", text, 0), "note: " + text + "\n") << "a file";
  EXPECT_EQ(message_lines("note: ", text, 30),
            "note: a note that is somewhat\n      longer than its line\nshort\n");
  EXPECT_EQ(message_lines("", "  two  blanks stay\n\n", 30), "  two  blanks stay\n");
}

// As the kernel and bash say it: COLUMNS is a number of columns.
TEST(Wrap, HelpIsAsWideAsColumnsOrTheTerminalAndNeverWiderThan100) {
  const auto with = [](const char* columns, std::size_t terminal) {
    columns ? setenv("COLUMNS", columns, 1) : unsetenv("COLUMNS");
    return help_width({.width = terminal});
  };
  EXPECT_EQ(with(nullptr, 0), 100u);
  EXPECT_EQ(with(nullptr, 80), 80u);
  EXPECT_EQ(with(nullptr, 250), 100u);
  EXPECT_EQ(with("72", 80), 72u);
  EXPECT_EQ(with("72", 0), 72u);
  for (const char* none : {"", "0", "-3", "wide", "72x"}) EXPECT_EQ(with(none, 80), 80u) << none;
  EXPECT_EQ(with("10", 80), 50u);
  unsetenv("COLUMNS");
}

}  // namespace
}  // namespace demi::report

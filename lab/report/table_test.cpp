#include "lab/report/table.h"

#include <gtest/gtest.h>

#include <sstream>

#include "lab/report/markdown_testing.h"
#include "lab/report/markup.h"

namespace demi::report {
namespace {

Table runs() {
  return {.title = "two runs",
          .columns = {{"run", "", Align::kLeft},
                      {"time per epoch", "s"},
                      {"peak memory", "MB"},
                      {"skipped steps", ""}},
          .rows = {{"fp32", "44.7", "618", ""}, {"bf16", "26.1", "1,352", "3"}},
          .notes = {"Time is training only."}};
}

Terminal wide(std::size_t width, bool utf8 = true) { return {.width = width, .utf8 = utf8}; }

std::size_t widest(const std::string& text) {
  std::istringstream lines(text);
  std::size_t width = 0;
  for (std::string line; std::getline(lines, line);) width = std::max(width, display_width(line));
  return width;
}

TEST(Table, NumbersAreAlignedBelowTheirHeader) {
  EXPECT_EQ(to_text(runs(), wide(0)),
            "two runs\n\n"
            "run   time per epoch  peak memory  skipped steps\n"
            "                   s           MB\n"
            "────────────────────────────────────────────────\n"
            "fp32            44.7          618              –\n"
            "bf16            26.1        1,352              3\n"
            "\nTime is training only.\n");
}

TEST(Table, NoWidthCutsAFigureOrRunsOver) {
  for (std::size_t width = 22; width <= 120; ++width) {
    const std::string text = to_text(runs(), wide(width));
    EXPECT_LE(widest(text), width);
    for (const char* figure : {"44.7", "26.1", "618", "1,352", "skipped", "MB", "fp32", "bf16"}) {
      EXPECT_NE(text.find(figure), std::string::npos) << figure << " at " << width << "\n" << text;
    }
  }
}

TEST(Table, NarrowWindowsExchangeRowsAndColumnsThenListThem) {
  Table table = runs();
  table.columns.insert(table.columns.end(), {{"test accuracy", "%"}, {"model size", "MB"}});
  for (auto& row : table.rows) row.insert(row.end(), {"92.2", "1.41"});
  EXPECT_NE(to_text(table, wide(34)).find("time per epoch (s)  44.7   26.1\n"), std::string::npos)
      << to_text(table, wide(34));
  EXPECT_NE(to_text(table, wide(25)).find("bf16\n  time per epoch (s) 26.1\n"), std::string::npos)
      << to_text(table, wide(25));
}

TEST(Table, NoControlCharactersReachAFileAndNoNameReachesTheCursor) {
  Table table = runs();
  table.rows[0][0] = "\x1b[2Jevil\n\x07";
  for (const bool colour : {false, true}) {
    const std::string text =
        to_text(table, {.width = 100, .interactive = colour, .colour = colour, .utf8 = true});
    EXPECT_EQ(text.find("\x1b[2J"), std::string::npos);
    EXPECT_EQ(text.find('\x1b') != std::string::npos, colour);
  }
}

TEST(Table, AsciiLocalesGetAscii) {
  Table table = runs();
  table.columns[1].unit = "µs ×";
  for (const char c : to_text(table, wide(0, false)))
    EXPECT_LT(static_cast<unsigned char>(c), 0x80);
}

TEST(Table, HtmlHasCaptionAndHeadersAndEscapes) {
  Table table = runs();
  table.rows[0][0] = "<script>\"&'";
  const std::string html = to_html(table);
  EXPECT_NE(html.find("<caption>two runs</caption>"), std::string::npos);
  EXPECT_NE(html.find("<th scope=\"row\" class=\"left\">&lt;script&gt;&quot;&amp;&#39;</th>"),
            std::string::npos);
  EXPECT_EQ(html.find("<script"), std::string::npos);
}

// The page's style wraps what has this class.
TEST(Table, SentencesOfATextColumnWrapInAPage) {
  Table table;
  table.columns = {{.name = "cause", .align = Align::kLeft},
                   {.name = "what shows it", .align = Align::kLeft},
                   {.name = "number"}};
  const std::string sentence = "no unit multiplies numbers of this format";
  const std::string name = "layers.0.attention.projection.weight";
  table.rows = {{"no unit", sentence, sentence}, {"idle", name, "1"}, {"waits", "few", "2"}};
  const std::string html = to_html(table);
  EXPECT_NE(html.find("<td class=\"left text\">" + sentence + "</td>"), html.npos);
  EXPECT_NE(html.find("<td>" + sentence + "</td>"), html.npos) << "of numbers";
  EXPECT_NE(html.find("<td class=\"left\">" + name + "</td>"), html.npos) << "one word";
  EXPECT_NE(html.find("<td class=\"left\">few</td>"), html.npos);
}

TEST(Table, MarkdownIsAPipeTable) {
  Table table = runs();
  table.rows[0][0] = "a|b_c";
  EXPECT_EQ(to_markdown(table),
            "**two runs**\n\n"
            "| run | time per epoch (s) | peak memory (MB) | skipped steps |\n"
            "| :--- | ---: | ---: | ---: |\n"
            "| a\\|b\\_c | 44.7 | 618 | – |\n"
            "| bf16 | 26.1 | 1,352 | 3 |\n"
            "\nTime is training only.\n");
}

TEST(Table, EmptyOnesAreNoError) {
  EXPECT_EQ(to_text({}, wide(80)), "");
  EXPECT_NE(to_text({.columns = {{"run"}}}, wide(3)).find("run"), std::string::npos);
}

TEST(Text, WidthsCountColumnsAndCutsKeepCharactersWhole) {
  EXPECT_EQ(display_width("µ×–"), 3U);
  EXPECT_EQ(display_width("日本"), 4U);
  EXPECT_EQ(display_width("e\xCC\x81"), 1U);  // e and a combining accent
  EXPECT_EQ(cut_to_width("日本", 3), "日");
  EXPECT_EQ(printable("a\xFF\xC0\xAF", true), "a???");  // broken and overlong UTF-8
  EXPECT_EQ(escape_html("\xED\xA0\x80 \x01"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD \xEF\xBF\xBD");
}

}  // namespace
}  // namespace demi::report

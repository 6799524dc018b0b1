#include "lab/report/exponent_bars.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace demi::report {
namespace {

ExponentBars two_kinds() {
  return {.title = "gradients",
          .bars = {{.name = "plain", .percent = {{-30, 25}, {-20, 50}}, .zero_percent = 25},
                   {.name = "scaled", .percent = {{-20, 25}, {-10, 50}}, .zero_percent = 25}},
          .marks = {{-24, "2^-24"}, {-14, "2^-14"}, {16, "65504"}},
          .note = "a note"};
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(ExponentBars, DrawEachShareTheZerosAndTheLimits) {
  const std::string svg = to_svg(two_kinds());
  EXPECT_EQ(times(svg, "<rect class=\"f1\""), 3u + 1u);  // two shares, zeros, and the legend
  EXPECT_EQ(times(svg, "class=\"mark\""), 3u);
  EXPECT_EQ(times(svg, ">0<"), 1u) << "2^0; the bar of exact zeros has its name";
  EXPECT_EQ(times(svg, ">zero<"), 1u);
  for (const char* label : {"2^-24", "2^-14", "65504", "a note", "plain", "scaled"})
    EXPECT_NE(svg.find(label), svg.npos) << label;
  EXPECT_NE(svg.find("plain: 25 % exact zeros, from 2^-30 to 2^-20, most (50 %) at 2^-20."),
            svg.npos);
}

// A share of 100 % is as high as the plot, 1 % less by as much as any other factor of 100.
TEST(ExponentBars, TheAxisIsLogarithmic) {
  const auto height_of = [](double percent) {
    const std::string svg = to_svg(ExponentBars{
        .title = "", .bars = {{.name = "x", .percent = {{0, percent}, {5, 0.01}}}}, .marks = {}});
    std::smatch found;
    const std::regex bar(R"(<rect class="f1"[^>]*width="[0-9.]+" height="([0-9.]+)\"/>)");
    EXPECT_TRUE(std::regex_search(svg, found, bar));
    return std::stod(found[1]);
  };
  EXPECT_NEAR(height_of(100) / height_of(1), 2, 0.02);
  EXPECT_NEAR(height_of(1) / height_of(0.1), 2, 0.02);
}

TEST(ExponentBars, NothingToShowIsAnEmptyFrame) {
  const std::string svg =
      to_svg(ExponentBars{.title = "none", .bars = {{.name = "x"}}, .marks = {}});
  EXPECT_NE(svg.find("</svg>"), svg.npos);
  EXPECT_EQ(svg.find("nan"), svg.npos);
}

}  // namespace
}  // namespace demi::report

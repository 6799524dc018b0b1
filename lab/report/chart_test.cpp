#include "lab/report/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "lab/report/decimate.h"
#include "lab/report/html_page.h"
#include "lab/report/palette.h"

namespace demi::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

Chart chart_of(std::vector<Series> series) {
  return {
      .title = "t", .x = {.label = "step"}, .y = {.label = "loss"}, .series = std::move(series)};
}

TEST(Ticks, AreMultiplesOf125AndCoverTheRange) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-8, 8), sign(-1, 1);
  for (int i = 0; i < 2000; ++i) {
    const double a = sign(random) * std::pow(10, exponent(random)),
                 b = sign(random) * std::pow(10, exponent(random));
    const AxisScale axis =
        axis_scale({std::min(a, b), std::max(a, b), false}, Scale::kLinear, 6, true);
    EXPECT_LE(axis.low, std::min(a, b) + 1e-9 * std::abs(a - b));
    EXPECT_GE(axis.high, std::max(a, b) - 1e-9 * std::abs(a - b));
    ASSERT_GE(axis.ticks.size(), 2U);
    EXPECT_LE(axis.ticks.size(), 9U);
    const double step = axis.ticks[1].value - axis.ticks[0].value;
    const double mantissa = step / std::pow(10, std::floor(std::log10(step * (1 + 1e-9))));
    EXPECT_TRUE(std::abs(mantissa - 1) < 1e-6 || std::abs(mantissa - 2) < 1e-6 ||
                std::abs(mantissa - 5) < 1e-6)
        << step;
  }
}

TEST(Ticks, LogarithmicOnesArePowersOrTheir125) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-9, 9);
  for (int i = 0; i < 1000; ++i) {
    const double a = std::pow(10, exponent(random)), b = std::pow(10, exponent(random));
    for (const Scale scale : {Scale::kLog2, Scale::kLog10}) {
      const AxisScale axis = axis_scale({std::min(a, b), std::max(a, b), false}, scale, 6, true);
      EXPECT_LE(axis.low, std::min(a, b) * (1 + 1e-6));
      EXPECT_GE(axis.high, std::max(a, b) * (1 - 1e-6));
      EXPECT_GE(axis.ticks.size(), 2U);
      EXPECT_LE(axis.ticks.size(), 13U);
    }
  }
  EXPECT_EQ(axis_scale({16384, 65536, false}, Scale::kLog2, 6, true).ticks[1].label, "32768");
  for (const Range range : {Range{0.25, 16384, false}, Range{64, 0x1p38, false}})
    for (const Tick& tick : axis_scale(range, Scale::kLog2, 6, true).ticks)
      EXPECT_TRUE(tick.label.starts_with("2^")) << tick.label << ": one spelling an axis";
}

TEST(Ticks, StandStillForOneValueNoneAndWholeSteps) {
  EXPECT_GE(axis_scale({5, 5, false}, Scale::kLinear, 6, true).ticks.size(), 2U);
  EXPECT_GE(axis_scale({}, Scale::kLinear, 6, true).ticks.size(), 2U);
  EXPECT_GE(axis_scale({}, Scale::kLog2, 6, true).ticks.size(), 2U);
  EXPECT_EQ(axis_scale({1, 3, false}, Scale::kLinear, 9, false, true).ticks.size(), 3U);
  EXPECT_EQ(axis_scale({0, 0.4, false}, Scale::kLinear, 4, true).ticks[1].label, "0.1");
}

// Doubles near the values lie no closer than an ulp, and 2^53 steps of a finer axis would not end.
TEST(Ticks, OfValuesThatDifferByTheirLastBitsAreFew) {
  for (const double a : {1.0, 2.3, 5.0, 1e16, 0.6931471805599453, 1e-300}) {
    for (const double b : {std::nextafter(a, 2 * a), a * (1 + 1e-15), a * (1 + 2e-9)}) {
      for (const Scale scale : {Scale::kLinear, Scale::kLog2, Scale::kLog10}) {
        for (const bool loose : {true, false}) {
          const AxisScale axis = axis_scale({a, b, false}, scale, 6, loose);
          EXPECT_LE(axis.ticks.size(), 13U) << a << " " << b;
          for (const double value : {a, b}) {
            EXPECT_GE(axis.place(value), -1e-6) << a << " " << b;
            EXPECT_LE(axis.place(value), 1 + 1e-6) << a << " " << b;
          }
        }
      }
      const AxisScale below = axis_scale({-b, -a, false}, Scale::kLinear, 6, true);
      EXPECT_LE(below.ticks.size(), 9U) << a;
      EXPECT_LE(std::abs(below.place(-a) - 0.5), 0.5) << a;
    }
  }
  const AxisScale wide = axis_scale({1e-5, 1 + 2e-9, false}, Scale::kLog10, 6, true);
  EXPECT_NEAR(wide.place(1), 1, 1e-6);
}

TEST(Ticks, OfTheLeastAndTheGreatestValuesThatAreDrawn) {
  for (const double value : {std::numeric_limits<double>::max(), 1e301, -1e301, 1e-301, 5e-324})
    EXPECT_EQ(drawable(value, Scale::kLog10), false) << value;
  EXPECT_FALSE(drawable(-1e301, Scale::kLinear));
  EXPECT_TRUE(drawable(5e-324, Scale::kLinear));
  const AxisScale largest = axis_scale({-1e300, 1e300, false}, Scale::kLinear, 6, true);
  EXPECT_NEAR(largest.place(0), 0.5, 1e-12);
  EXPECT_LE(largest.ticks.size(), 9U);
  const AxisScale least = axis_scale({0, 5e-324, false}, Scale::kLinear, 6, true);
  EXPECT_LE(least.ticks.size(), 9U);
  EXPECT_LE(std::abs(least.place(0) - 0.5), 0.5);
  const AxisScale all = axis_scale({1e-300, 1e300, false}, Scale::kLog10, 6, true);
  EXPECT_NEAR(all.place(1), 0.5, 0.02);
  EXPECT_LE(all.ticks.size(), 13U);
}

TEST(Decimation, KeepsTheExtremesOfEveryPixelAndTheGaps) {
  std::vector<Point> points;
  for (int i = 0; i < 100'000; ++i)
    points.push_back({i / 1000.0, i == 54'321 ? 9.0 : i == 54'400 ? -9.0 : std::sin(i)});
  for (const std::size_t i : {70'000, 70'001, 70'500}) points[i].y = kNan;
  const std::vector<Point> kept = decimate(points);
  EXPECT_LE(kept.size(), 4 * 101U + 2);
  EXPECT_EQ(
      std::count_if(kept.begin(), kept.end(), [](const Point& p) { return std::abs(p.y) == 9; }),
      2);
  EXPECT_EQ(std::count_if(kept.begin(), kept.end(), [](const Point& p) { return std::isnan(p.y); }),
            2)
      << "one for each gap, however long it is";
  EXPECT_EQ(kept.front().y, points.front().y);
  EXPECT_EQ(kept.back().y, points.back().y);
}

TEST(Smoothing, IsTheDebiasedMeanAndLeavesGaps) {
  // Kingma and Ba's bias correction by hand: (0.25 * 1 + 0.5 * 3) / 0.75, and the NaN in between
  // changes nothing.
  const std::vector<double> out = smoothed({1, kNan, 3}, 0.5);
  EXPECT_EQ(out[0], 1);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_NEAR(out[2], 1.75 / 0.75, 1e-12);
}

TEST(Chart, NanAndInfinityBreakTheCurve) {
  Series series{.name = "a"};
  for (int i = 0; i < 30; ++i)
    series.x.push_back(i), series.y.push_back(i == 10 ? kNan : i == 20 ? -1.0 / 0.0 : i);
  const std::string svg = to_svg(chart_of({series}));
  const std::size_t curve = svg.find("<path", svg.find("class=\"s1\""));
  EXPECT_EQ(count(svg.substr(curve, svg.find("/>", curve) - curve), "M"), 3U);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("2 not finite"), std::string::npos);
}

TEST(Chart, SaysWhenItDoesNotDrawEveryPointAndStaysSmall) {
  Series series{.name = "a"};
  for (int i = 0; i < 40'000; ++i) series.x.push_back(i), series.y.push_back(std::sin(i));
  const std::string svg = to_svg(chart_of({series}));
  EXPECT_NE(svg.find("40,000 points"), std::string::npos);
  EXPECT_LT(svg.size(), 60'000U);
}

TEST(Chart, EmptySeriesHaveNoLabelAndKeepThePlaceOfTheOthers) {
  const std::string svg = to_svg(chart_of({{"one", {}, {}}, {"two", {1, 2}, {3, 4}}}));
  EXPECT_EQ(svg.find(">one</text>"), std::string::npos);
  EXPECT_NE(svg.find("class=\"t2\""), std::string::npos);
  EXPECT_NO_THROW(to_svg(chart_of({})));
  EXPECT_NO_THROW(to_svg(chart_of({{"nan", {1}, {kNan}}})));
  EXPECT_NO_THROW(to_svg(StackedBars{.parts = {"a"}, .bars = {{"x", {}}, {"y", {kNan}}}}));
}

TEST(Bars, SmallValuesKeepTheirDigits) {
  const std::string svg = to_svg(
      StackedBars{.parts = {"error"},
                  .bars = {{"a", {0.00031}}, {"b", {0.25}}, {"c", {12.34}}, {"d", {0.012}}}});
  for (const char* text : {"0.00031", "0.25", "12.3", "0.012"})
    EXPECT_NE(svg.find(text), svg.npos) << text;
  const auto drawn = svg.find(">12.3<");
  ASSERT_NE(drawn, svg.npos);
  EXPECT_EQ(svg.find(">12.3<", drawn + 1), svg.npos) << "a value is drawn once";
}

TEST(Chart, NamesAreEscapedEverywhere) {
  const std::string evil = "</svg><script>";
  Chart chart = chart_of({{evil, {1, 2}, {1, 2}}});
  chart.title = chart.note = chart.x.label = chart.y.unit = evil;
  chart.marks = {{1.5, evil}};
  const Page page{
      .title = evil,
      .subtitle = evil,
      .sections = {{evil,
                    {chart, StackedBars{.title = evil, .parts = {evil}, .bars = {{evil, {1}}}},
                     Facts{evil, {{evil, evil}}}, Code{evil}, Highlights{{{evil, evil, evil}}}}}},
      .footer = evil};
  EXPECT_EQ(to_html(page).find("<script"), std::string::npos);
}

double linear(double c) { return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4); }

std::array<double, 3> rgb(const std::string& hex) {
  std::array<double, 3> out{};
  for (std::size_t i = 0; i < 3; ++i)
    out[i] = linear(std::stoi(hex.substr(1 + 2 * i, 2), nullptr, 16) / 255.0);
  return out;
}

double luminance(const std::array<double, 3>& c) {
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
}

std::array<double, 3> lab(const std::array<double, 3>& c) {  // CIE 15, D65
  const auto f = [](double t) {
    return t > 216.0 / 24389 ? std::cbrt(t) : (24389.0 / 27 * t + 16) / 116;
  };
  const double x = f((0.4124 * c[0] + 0.3576 * c[1] + 0.1805 * c[2]) / 0.95047),
               y = f(luminance(c)),
               z = f((0.0193 * c[0] + 0.1192 * c[1] + 0.9505 * c[2]) / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

// Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB: none, protan, deutan, tritan.
constexpr double kVision[4][3][3] = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
                                     {{0.152286, 1.052583, -0.204868},
                                      {0.114503, 0.786281, 0.099216},
                                      {-0.003882, -0.048116, 1.051998}},
                                     {{0.367322, 0.860646, -0.227968},
                                      {0.280085, 0.672501, 0.047413},
                                      {-0.011820, 0.042940, 0.968881}},
                                     {{1.255528, -0.076749, -0.178779},
                                      {-0.078411, 0.930809, 0.147602},
                                      {0.004733, 0.691367, 0.303900}}};

std::array<double, 3> seen(const std::array<double, 3>& c, const double (&m)[3][3]) {
  std::array<double, 3> out{};
  for (std::size_t i = 0; i < 3; ++i)
    out[i] = std::clamp(m[i][0] * c[0] + m[i][1] * c[1] + m[i][2] * c[2], 0.0, 1.0);
  return out;
}

TEST(Palette, HasTheContrastOfTextAndStaysApartForEveryEye) {
  for (const Palette& palette : {kLight, kDark}) {
    const double paper = luminance(rgb(palette.background));
    for (std::size_t i = 0; i < palette.runs.size(); ++i) {
      const double ink = luminance(rgb(palette.runs[i]));
      EXPECT_GE((std::max(ink, paper) + 0.05) / (std::min(ink, paper) + 0.05), 4.495)
          << palette.runs[i];
      for (std::size_t j = 0; j < i; ++j) {
        for (const auto& vision : kVision) {
          const auto a = lab(seen(rgb(palette.runs[i]), vision)),
                     b = lab(seen(rgb(palette.runs[j]), vision));
          EXPECT_GT(std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]), 19)
              << palette.runs[i] << " " << palette.runs[j];
        }
      }
    }
  }
}

}  // namespace
}  // namespace demi::report

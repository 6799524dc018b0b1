#include "lab/report/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace demi::report {
namespace {

using std::chrono::duration;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::string seconds(double value) { return format_duration(duration<double>(value)); }

TEST(Format, BytesHaveThreeSignificantDigitsAndNeverFourBeforeThePoint) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(45'600'000), "45.6 MB");
  EXPECT_EQ(format_bytes(999'499), "999 kB");
  EXPECT_EQ(format_bytes(999'501), "1.00 MB");
  EXPECT_EQ(format_bytes(9'996'000), "10.0 MB");
  EXPECT_EQ(format_bytes(1.234e9), "1.23 GB");
  EXPECT_EQ(format_bytes(-2048), "-2.05 kB");
  EXPECT_EQ(format_bytes(kNaN), "nan");
}

TEST(Format, AColumnOfBytesSharesTheUnitOfItsLargest) {
  EXPECT_EQ(byte_unit(46e6).name, "MB");
  EXPECT_EQ(byte_unit(999.6e6).name, "GB");
  EXPECT_EQ(byte_unit(0).bytes, 1);
}

TEST(Format, DurationsChangeUnitWhereTheyRoundOver) {
  EXPECT_EQ(seconds(0), "0 s");
  EXPECT_EQ(seconds(8.4e-7), "840 ns");
  EXPECT_EQ(seconds(12.34e-6), "12.3 µs");
  EXPECT_EQ(seconds(0.4561), "456 ms");
  EXPECT_EQ(seconds(0.9996), "1.00 s");
  EXPECT_EQ(seconds(26.224), "26.2 s");
  EXPECT_EQ(seconds(59.96), "1m00s");
  EXPECT_EQ(seconds(92), "1m32s");
  EXPECT_EQ(seconds(3599.6), "1h00m");
  EXPECT_EQ(seconds(7500), "2h05m");
  EXPECT_EQ(seconds(86'400 * 3 + 4 * 3600), "3d04h");
  EXPECT_EQ(seconds(-5), "-5.00 s");
  EXPECT_EQ(seconds(kInf), "inf");
}

TEST(Format, ClocksRunDownInMinutesAndHours) {
  EXPECT_EQ(format_clock(duration<double>(41.2)), "0:41");
  EXPECT_EQ(format_clock(duration<double>(59.7)), "1:00");
  EXPECT_EQ(format_clock(duration<double>(7387)), "2:03:07");
  EXPECT_EQ(format_clock(duration<double>(-3)), "0:00");
}

TEST(Format, CountsAreGroupedByThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(60'000), "60,000");
  EXPECT_EQ(format_count(-1'234'567), "-1,234,567");
  EXPECT_EQ(format_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(format_fixed(-123, 1), "-123.0");
  EXPECT_EQ(format_fixed(1234.5, 2), "1,234.50");
  EXPECT_EQ(format_fixed(-0.0004, 2), "0.00");
}

TEST(Format, RatesPercentagesAndFactors) {
  EXPECT_EQ(format_rate(4560.4, "images"), "4,560 images/s");
  EXPECT_EQ(format_rate(12.34, "steps"), "12.3 steps/s");
  EXPECT_EQ(format_percent(0.92134), "92.13 %");
  EXPECT_EQ(format_percent(1, 0), "100 %");
  EXPECT_EQ(format_factor(1.7249), "1.72 ×");
  EXPECT_EQ(format_factor(-kInf), "-inf");
}

TEST(Format, NumbersKeepWhatMattersAndNoMore) {
  EXPECT_EQ(format_number(65536), "65536");
  EXPECT_EQ(format_number(-0.0), "0");
  EXPECT_EQ(format_number(0.001), "0.001");
  EXPECT_EQ(format_number(0.312349), "0.3123");
  EXPECT_EQ(format_number(1.5e-7), "1.5e-07");
  EXPECT_EQ(format_number(kNaN), "nan");
}

}  // namespace
}  // namespace demi::report

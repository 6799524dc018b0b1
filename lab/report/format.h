#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "demi/core/export.h"

/// Numbers as people read them: the only place where a figure becomes words. All text is UTF-8 with
/// a plain space before the unit; NaN reads "nan", infinities "inf" and "-inf", a missing figure is
/// the caller's business ("–").
namespace demi::report {

/// "0 B", "999 B", "1.23 kB", "45.6 MB", "789 MB", "1.23 GB": powers of 1000, three significant
/// digits.
DEMI_API std::string format_bytes(double bytes);

/// "840 ns", "12.3 µs", "456 ms", "26.2 s", "1m32s", "2h05m", "3d04h": three significant digits
/// under a minute.
DEMI_API std::string format_duration(std::chrono::duration<double> duration);

/// "0:41", "12:05", "2:03:07": for a clock that runs down.
DEMI_API std::string format_clock(std::chrono::duration<double> duration);

/// "60,000", "-1,234".
DEMI_API std::string format_count(std::int64_t count);

/// "4,560 images/s", "12.3 images/s".
DEMI_API std::string format_rate(double per_second, std::string_view what);

/// A fraction of 1 as "92.13 %".
DEMI_API std::string format_percent(double fraction, int decimals = 2);

/// A share as a percentage: one that is not 0 never reads as 0, but as "< 0.01 %".
DEMI_API std::string format_share(double fraction);

/// "1.72 ×".
DEMI_API std::string format_factor(double factor);

/// Fixed decimals, thousands grouped: "1,234.50".
DEMI_API std::string format_fixed(double value, int decimals);

/// The number with at most `digits` significant digits, no trailing zeros: "0.001", "65536",
/// "1.5e-07".
DEMI_API std::string format_number(double value, int digits = 4);

/// A loss: "0.4312", "1.234e-05" where four decimals would leave no digit, "nan".
DEMI_API std::string format_loss(double loss);

/// The unit of a column: the one that gives `largest` one to three digits before the point, and the
/// number to divide by.
struct ByteUnit {
  std::string name;  // "B", "kB", "MB", "GB", "TB"
  double bytes = 1;  // 1, 1e3, 1e6, ...
};
DEMI_API ByteUnit byte_unit(double largest);

}  // namespace demi::report

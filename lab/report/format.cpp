#include "lab/report/format.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

namespace demi::report {
namespace {

std::optional<std::string> non_finite(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return std::nullopt;
}

/// Three significant digits, without an exponent: 1.23, 12.3, 123. `value` is 0 or in [1, 1000).
std::string three_digits(double value) {
  if (std::abs(value) < 9.995) return fmt::format("{:.2f}", value);
  if (std::abs(value) < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

std::string group_thousands(std::string digits) {
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  std::size_t at = std::min(digits.find('.'), digits.size());
  while (at > first + 3) digits.insert(at -= 3, 1, ',');
  return digits;
}

}  // namespace

std::string format_loss(double loss) {
  if (!std::isfinite(loss)) return format_number(loss);
  const bool small = loss != 0 && std::fabs(loss) < 1e-3;
  return small ? fmt::format("{:.3e}", loss) : fmt::format("{:.4f}", loss);
}

ByteUnit byte_unit(double largest) {
  static constexpr std::array<const char*, 6> kNames = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t power = 0;
  double unit = 1;
  // 999.5 of a unit would round to 1000.
  while (power + 1 < kNames.size() && std::abs(largest) / unit >= 999.5) {
    unit *= 1000;
    ++power;
  }
  return {kNames[power], unit};
}

std::string format_bytes(double bytes) {
  if (auto text = non_finite(bytes)) return *text;
  const ByteUnit unit = byte_unit(bytes);
  if (unit.bytes == 1) return fmt::format("{:.0f} B", bytes);
  return three_digits(bytes / unit.bytes) + " " + unit.name;
}

std::string format_duration(std::chrono::duration<double> duration) {
  const double seconds = duration.count();
  if (auto text = non_finite(seconds)) return *text;
  if (seconds < 0) return format_duration(-duration).insert(0, 1, '-');
  if (seconds == 0) return "0 s";
  if (seconds < 999.5e-9) return three_digits(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return three_digits(seconds * 1e6) + " µs";
  if (seconds < 999.5e-3) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  const double whole = std::round(seconds);
  if (whole < 3600)
    return fmt::format("{:.0f}m{:02.0f}s", std::floor(whole / 60), std::fmod(whole, 60));
  const double minutes = std::round(seconds / 60);
  if (minutes < 1440)
    return fmt::format("{:.0f}h{:02.0f}m", std::floor(minutes / 60), std::fmod(minutes, 60));
  const double hours = std::round(seconds / 3600);
  return fmt::format("{:.0f}d{:02.0f}h", std::floor(hours / 24), std::fmod(hours, 24));
}

std::string format_clock(std::chrono::duration<double> duration) {
  if (auto text = non_finite(duration.count())) return *text;
  const double whole = std::round(std::max(0.0, duration.count()));
  const double hours = std::floor(whole / 3600);
  const double minutes = std::floor(std::fmod(whole, 3600) / 60);
  const double seconds = std::fmod(whole, 60);
  if (hours > 0) return fmt::format("{:.0f}:{:02.0f}:{:02.0f}", hours, minutes, seconds);
  return fmt::format("{:.0f}:{:02.0f}", minutes, seconds);
}

std::string format_count(std::int64_t count) { return group_thousands(fmt::format("{}", count)); }

std::string format_fixed(double value, int decimals) {
  if (auto text = non_finite(value)) return *text;
  std::string text = fmt::format("{:.{}f}", value, decimals);
  // -0.0004 to two decimals is 0.00, without a sign.
  if (text.starts_with('-') && text.find_first_of("123456789") == std::string::npos)
    text.erase(0, 1);
  return group_thousands(std::move(text));
}

std::string format_number(double value, int digits) {
  if (auto text = non_finite(value)) return *text;
  // Whole numbers that a double holds exactly, such as a loss scale, are written out.
  if (value == std::trunc(value) && std::abs(value) < 1e7)
    return fmt::format("{:.0f}", value + 0.0);
  return fmt::format("{:.{}g}", value, digits);
}

std::string format_rate(double per_second, std::string_view what) {
  const double size = std::abs(per_second);
  return fmt::format("{} {}/s", format_fixed(per_second, size < 10 ? 2 : size < 100 ? 1 : 0), what);
}

std::string format_percent(double fraction, int decimals) {
  if (auto text = non_finite(fraction)) return *text;
  return format_fixed(fraction * 100, decimals) + " %";
}

std::string format_share(double fraction) {
  if (fraction > 0 && fraction < 0.00005) return "< 0.01 %";
  return format_percent(fraction);
}

std::string format_factor(double factor) {
  if (auto text = non_finite(factor)) return *text;
  return format_fixed(factor, 2) + " ×";
}

}  // namespace demi::report

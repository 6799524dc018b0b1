#include "lab/number/binary_text.h"

#include <fmt/format.h>

#include <utility>

namespace demi::number {
namespace {

constexpr std::size_t kDroppedDigits = 5;  // of those that a format cuts off
constexpr std::size_t kMostWritten = 40;   // digits without an exponent

struct BinaryDigits {
  std::string digits;  // from the leading 1 on, to the last 1 of the 128
  bool has_more;
  std::int64_t magnitude;
};

BinaryDigits digits_of(const ExactNumber& x) {
  const LeadingBits leading = leading_bits(x);
  std::string digits;
  for (int bit = 127; bit >= 0; --bit) digits += (leading.bits >> bit) & 1 ? '1' : '0';
  digits.resize(digits.find_last_of('1') + 1);
  return {
      .digits = std::move(digits), .has_more = leading.has_rest, .magnitude = leading.magnitude()};
}

// The digits without the leading 1.
std::string fraction_digits(const BinaryDigits& number, std::size_t count) {
  return number.digits.substr(1, count);
}

}  // namespace

std::string positional_text(const ExactNumber& x) {
  const BinaryDigits number = digits_of(x);
  const auto length = static_cast<std::int64_t>(number.digits.size());
  constexpr auto kMost = static_cast<std::int64_t>(kMostWritten);
  if (number.has_more || number.magnitude == 0 || number.magnitude >= kMost ||
      length - number.magnitude > kMost)
    return "";
  std::string text = number.digits;
  if (number.magnitude < 0)
    return "0." + std::string(static_cast<std::size_t>(-number.magnitude - 1), '0') + text;
  const auto before_point = static_cast<std::size_t>(number.magnitude + 1);
  if (text.size() <= before_point) return text + std::string(before_point - text.size(), '0');
  return text.insert(before_point, 1, '.');
}

std::string normalised_text(const ExactNumber& x, int digits) {
  const BinaryDigits number = digits_of(x);
  const auto room = static_cast<std::size_t>(digits) + kDroppedDigits;
  const bool is_cut = number.has_more || number.digits.size() - 1 > room;
  const std::string fraction = fraction_digits(number, room);
  return fmt::format("1{}{}{} × 2^{}", fraction.empty() ? "" : ".", fraction, is_cut ? "..." : "",
                     number.magnitude);
}

CutNumber cut_after(const ExactNumber& x, int digits) {
  const BinaryDigits number = digits_of(x);
  const auto count = static_cast<std::size_t>(digits);
  std::string kept = fraction_digits(number, count);
  kept.resize(count, '0');
  const std::string all_dropped =
      number.digits.size() > count + 1 ? number.digits.substr(count + 1) : "";
  CutNumber cut{.magnitude = number.magnitude, .kept = "1." + kept};
  const bool has_more = number.has_more || all_dropped.size() > kDroppedDigits;
  cut.dropped = all_dropped.substr(0, kDroppedDigits) + (has_more ? "..." : "");
  if (all_dropped.empty() && !number.has_more) {
    cut.rest = Rest::kNone;
  } else if (all_dropped.empty() || all_dropped[0] == '0') {
    cut.rest = Rest::kLess;
  } else {
    cut.rest = all_dropped.size() == 1 && !number.has_more ? Rest::kHalf : Rest::kMore;
  }
  return cut;
}

}  // namespace demi::number

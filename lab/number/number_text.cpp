#include "lab/number/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "demi/core/error.h"

namespace demi::number {
namespace {

// Every format's numbers are far from these, and 10^5000 has 17,000 bits.
constexpr std::int64_t kMostDecimalExponent = 5000;
constexpr std::int64_t kMostBinaryExponent = 17000;

constexpr std::string_view kAccepted =
    "numbers such as 1, -2.5, 1e-8, 0x1.8p-3, inf and nan, with + - * / and ( )";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// 16 if it is no digit.
std::uint32_t hexadecimal_digit(char c) {
  if (is_digit(c)) return static_cast<std::uint32_t>(c - '0');
  const char letter = lower(c);
  return letter >= 'a' && letter <= 'f' ? static_cast<std::uint32_t>(letter - 'a' + 10) : 16;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// A piece of the text that does not begin or end inside a UTF-8 character.
std::string excerpt(std::string_view text, std::size_t at) {
  constexpr std::size_t kBefore = 20, kAfter = 20;
  std::size_t begin = at > kBefore ? at - kBefore : 0;
  std::size_t end = std::min(text.size(), at + kAfter);
  while (begin > 0 && is_continuation(text[begin])) --begin;
  while (end < text.size() && is_continuation(text[end])) ++end;
  std::string piece(text.substr(begin, end - begin));
  for (char& c : piece)
    if (is_control(c)) c = '?';
  if (begin > 0) piece.insert(0, "...");
  if (end < text.size()) piece.append("...");
  return piece;
}

// Walks over one number.
class Reader {
 public:
  Reader(std::string_view text, std::size_t at) : text_(text), at_(at) {}

  std::size_t at() const { return at_; }
  char peek() const { return at_ < text_.size() ? lower(text_[at_]) : '\0'; }
  char next() { return text_[at_++]; }

  bool skip(char c) {
    const bool found = peek() == c;
    at_ += found;
    return found;
  }
  // The whole word, which no letter or digit follows.
  bool skip_word(std::string_view word) {
    std::size_t end = at_;
    while (end < text_.size() && is_digit_or_letter(text_[end])) ++end;
    const std::string_view found = text_.substr(at_, end - at_);
    const bool same = std::ranges::equal(found, word, {}, lower);
    if (same) at_ = end;
    return same;
  }
  [[noreturn]] void refuse(std::string_view what) const { refuse_number(text_, at_, what); }

 private:
  static bool is_digit_or_letter(char c) {
    return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z');
  }

  std::string_view text_;
  std::size_t at_;
};

// [+-]digits. Beyond every length of a text it says a large number of that sign.
std::int64_t read_exponent(Reader& reader) {
  constexpr std::int64_t kLarge = std::numeric_limits<std::int64_t>::max() / 100;
  const bool negative = reader.skip('-');
  if (!negative) reader.skip('+');
  if (!is_digit(reader.peek())) reader.refuse("an exponent needs a digit");
  std::int64_t exponent = 0;
  while (is_digit(reader.peek()))
    exponent = std::min(kLarge, exponent * 10 + (reader.next() - '0'));
  return negative ? -exponent : exponent;
}

// Digits with at most one point among them. Leading zeros of the number are left out.
struct Digits {
  std::string digits;
  std::int64_t after_point = 0;
};

template <class IsDigit>
Digits read_digits(Reader& reader, IsDigit is_one) {
  Digits read;
  bool has_digit = false, has_point = false;
  for (;;) {
    if (is_one(reader.peek())) {
      const char digit = reader.next();
      has_digit = true;
      read.after_point += has_point;
      if (digit != '0' || !read.digits.empty()) read.digits += digit;
    } else if (!has_point && reader.skip('.')) {
      has_point = true;
    } else {
      break;
    }
  }
  if (!has_digit) reader.refuse("a number is expected");
  return read;
}

ExactNumber power_of_ten(std::int64_t exponent) {
  const auto five = BigUnsigned::power(5, static_cast<std::uint64_t>(std::abs(exponent)));
  if (exponent < 0) return {.numerator = BigUnsigned(1), .denominator = five, .exponent = exponent};
  return {.numerator = five, .exponent = exponent};
}

Literal finite(ExactNumber value, bool is_stand_in = false) {
  const Kind kind = value.is_zero() ? Kind::kZero : Kind::kNormal;
  return {.kind = kind, .value = std::move(value), .is_stand_in = is_stand_in};
}

Literal beyond_all_formats(bool is_large) {
  return finite(power_of_ten(is_large ? kMostDecimalExponent : -kMostDecimalExponent), true);
}

// The digits as one number. Each chunk of them, and base^chunk, fit 32 bits.
BigUnsigned integer_of(std::string_view digits, std::uint32_t base) {
  const std::size_t chunk = base == 10 ? 9 : 7;
  BigUnsigned integer;
  while (!digits.empty()) {
    std::uint32_t value = 0, scale = 1;
    for (const char digit : digits.substr(0, chunk)) {
      value = value * base + hexadecimal_digit(digit);
      scale *= base;
    }
    integer.multiply_add(scale, value);
    digits.remove_prefix(std::min(chunk, digits.size()));
  }
  return integer;
}

Literal read_decimal(Reader& reader) {
  const Digits read = read_digits(reader, is_digit);
  const std::int64_t exponent = (reader.skip('e') ? read_exponent(reader) : 0) - read.after_point;
  if (read.digits.empty()) return finite({});
  const std::int64_t magnitude = exponent + static_cast<std::int64_t>(read.digits.size()) - 1;
  if (std::abs(magnitude) > kMostDecimalExponent) return beyond_all_formats(magnitude > 0);
  const ExactNumber integer{.numerator = integer_of(read.digits, 10)};
  return finite(product(integer, power_of_ten(exponent)));
}

Literal read_hexadecimal(Reader& reader) {
  const Digits read = read_digits(reader, [](char c) { return hexadecimal_digit(c) < 16; });
  const std::int64_t exponent =
      (reader.skip('p') ? read_exponent(reader) : 0) - 4 * read.after_point;
  if (read.digits.empty()) return finite({});
  const std::int64_t magnitude = exponent + 4 * static_cast<std::int64_t>(read.digits.size());
  if (std::abs(magnitude) > kMostBinaryExponent) return beyond_all_formats(magnitude > 0);
  return finite({.numerator = integer_of(read.digits, 16), .exponent = exponent});
}

// Writes digits × 10^exponent; the last digits may be 0.
std::string laid_out(std::string digits, std::int64_t exponent, bool negative) {
  constexpr std::int64_t kLowestPlain = -6, kHighestPlain = 20;
  const std::size_t used = digits.find_last_not_of('0') + 1;
  exponent += static_cast<std::int64_t>(digits.size() - used);
  digits.resize(used);
  const auto count = static_cast<std::int64_t>(digits.size());
  const std::int64_t magnitude = exponent + count - 1;
  std::string text = negative ? "-" : "";
  if (count == 0) {
    text += '0';
  } else if (magnitude < kLowestPlain || magnitude > kHighestPlain) {
    text += digits[0];
    if (count > 1) text.append(1, '.').append(digits, 1);
    text.append(1, 'e').append(std::to_string(magnitude));
  } else if (exponent >= 0) {
    text.append(digits).append(static_cast<std::size_t>(exponent), '0');
  } else if (magnitude < 0) {
    text.append("0.").append(static_cast<std::size_t>(-magnitude - 1), '0').append(digits);
  } else {
    const auto point = static_cast<std::size_t>(magnitude + 1);
    text.append(digits, 0, point).append(1, '.').append(digits, point);
  }
  return text;
}

// |x| × 10^-exponent, to the nearest integer.
RoundedInteger scaled_integer(const ExactNumber& x, std::int64_t exponent) {
  return nearest_integer(leading_bits(product(x, power_of_ten(-exponent))), 0);
}

}  // namespace

void refuse_number(std::string_view text, std::size_t at, std::string_view what) {
  at = std::min(at, text.size());
  const auto position =
      at + 1 -
      static_cast<std::size_t>(std::count_if(
          text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), is_continuation));
  throw UsageError({.where = "number.read_number",
                    .what = std::string(what) + " at position " + std::to_string(position),
                    .seen = "'" + excerpt(text, at) + "'",
                    .accepted = kAccepted});
}

Literal read_number(std::string_view text, std::size_t& at) {
  Reader reader(text, at);
  Literal literal;
  if (reader.skip_word("inf") || reader.skip_word("infinity")) {
    literal.kind = Kind::kInfinity;
  } else if (reader.skip_word("nan")) {
    literal.kind = Kind::kNaN;
  } else if (text.substr(at).starts_with("0x") || text.substr(at).starts_with("0X")) {
    reader.next();
    reader.next();
    literal = read_hexadecimal(reader);
  } else {
    literal = read_decimal(reader);
  }
  at = reader.at();
  return literal;
}

std::string to_decimal(const ExactNumber& x) {
  // m × 2^-k = m × 5^k × 10^-k.
  BigUnsigned integer = x.numerator;
  if (x.exponent >= 0) {
    integer <<= x.exponent;
    return laid_out(integer.to_decimal(), 0, x.negative);
  }
  integer = integer * BigUnsigned::power(5, static_cast<std::uint64_t>(-x.exponent));
  return laid_out(integer.to_decimal(), x.exponent, x.negative);
}

RoundedDecimal round_to_decimal(const ExactNumber& x, int digits) {
  if (x.is_zero()) return {.text = x.negative ? "-0" : "0", .is_exact = true};
  // The power of ten below |x|, or one less: then there is a digit too many.
  const auto magnitude = static_cast<std::int64_t>(
      std::floor(static_cast<double>(leading_bits(x).magnitude()) * std::log10(2.0)));
  std::uint64_t limit = 1;
  for (int digit = 0; digit < digits; ++digit) limit *= 10;
  std::int64_t exponent = magnitude - digits + 1;
  RoundedInteger rounded = scaled_integer(x, exponent);
  if (rounded.value >= limit) rounded = scaled_integer(x, ++exponent);
  return {.text = laid_out(std::to_string(rounded.value), exponent, x.negative),
          .is_exact = rounded.is_exact};
}

}  // namespace demi::number

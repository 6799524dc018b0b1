#include "demi/train/every.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "demi/core/error.h"

namespace demi::train {
namespace {

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse_every(std::string_view text) {
  const std::string meant = every_meant(text);
  throw UsageError({.where = "train.Every.parse",
                    .what = "not a frequency",
                    .seen = text.empty() ? "nothing" : text,
                    .accepted = "a number of steps (400), of epochs (1epoch, 2epochs), of minutes "
                                "(10min) or of hours (1.5h, 1h30m), of seconds (90s); 0 for never",
                    .advice = meant.empty() ? "" : "did you mean " + meant + "?"});
}

/// Removes a number and its unit from the front of `text`, and returns them; nullopt if there are
/// none.
std::optional<std::pair<double, std::string_view>> take_part(std::string_view& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::size_t end = std::min(text.find_first_of("0123456789.", digits), text.size());
  const auto number = number_in<double>(text.substr(0, digits));
  const std::string_view unit = text.substr(digits, end - digits);
  text.remove_prefix(end);
  if (!number || !std::isfinite(*number)) return std::nullopt;
  return std::pair(*number, unit);
}

}  // namespace

std::optional<double> minutes_in(std::string_view text) {
  struct Unit {
    std::string_view name;
    int place;
    double minutes;
  };
  constexpr Unit kUnits[] = {{"h", 1, 60}, {"min", 2, 1}, {"m", 2, 1}, {"s", 3, 1.0 / 60}};
  if (text.empty()) return std::nullopt;
  double minutes = 0;
  for (int place = 0; !text.empty();) {
    const auto part = take_part(text);
    if (!part) return std::nullopt;
    const auto* unit = std::ranges::find(kUnits, part->second, &Unit::name);
    if (unit == std::end(kUnits) || unit->place <= place) return std::nullopt;
    place = unit->place;
    minutes += part->first * unit->minutes;
  }
  return minutes;
}

std::string every_meant(std::string_view text) {
  std::string closed(text);
  std::erase(closed, ' ');
  if (closed == text) return "";
  try {
    Every::parse(closed);
    return closed;
  } catch (const UsageError&) {
    return "";
  }
}

Every Every::parse(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, digits), unit = text.substr(digits);
  if (unit.empty() || unit == "epoch" || unit == "epochs") {
    const auto count = number_in<int64_t>(number);
    if (!count) refuse_every(text);
    return unit.empty() ? Every{.steps = *count} : Every{.epochs = *count};
  }
  const auto minutes = minutes_in(text);
  if (!minutes) refuse_every(text);
  return {.minutes = *minutes};
}

std::string Every::to_string() const {
  if (steps > 0) return std::to_string(steps);
  if (epochs > 0) return fmt::format("{}epoch{}", epochs, epochs == 1 ? "" : "s");
  if (!(minutes > 0)) return "0";
  std::array<char, 400> digits{};  // never with an exponent, which parse() does not know
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), minutes,
                                 std::chars_format::fixed);
  return std::string(digits.data(), end.ptr) + "min";
}

}  // namespace demi::train

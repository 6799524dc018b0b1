#include "demi/train/every.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "demi/core/error.h"

namespace demi::train {
namespace {

constexpr double kMinutesAnHour = 60;

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse_every(std::string_view text) {
  throw UsageError({.where = "train.Every.parse",
                    .what = "this says not how often",
                    .seen = text.empty() ? "nothing" : text,
                    .accepted = "a number of steps (400), of epochs (1epoch, 2epochs), of minutes "
                                "(10min) or of hours (1.5h); 0 for never"});
}

}  // namespace

Every Every::parse(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, digits), unit = text.substr(digits);
  if (unit.empty() || unit == "epoch" || unit == "epochs") {
    const auto count = number_in<int64_t>(number);
    if (!count) refuse_every(text);
    return unit.empty() ? Every{.steps = *count} : Every{.epochs = *count};
  }
  const auto length = number_in<double>(number);
  if (!length || !std::isfinite(*length) || (unit != "min" && unit != "h")) refuse_every(text);
  return {.minutes = unit == "h" ? *length * kMinutesAnHour : *length};
}

std::string Every::to_string() const {
  if (steps > 0) return std::to_string(steps);
  if (epochs > 0) return fmt::format("{}epoch{}", epochs, epochs == 1 ? "" : "s");
  return minutes > 0 ? fmt::format("{}min", minutes) : "0";
}

}  // namespace demi::train

#include "lab/values/setting.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::values {
namespace {

template <class Number>
Number parse_number(std::string_view text, std::string_view source) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure == std::errc() && stop == end) return value;
  wrong(source, "not a number", text,
        std::is_integral_v<Number> ? "a whole number" : "a number such as 0.1 or 1e-3");
}

// config.json and checkpoints hold the text, and JSON is UTF-8.
void require_utf8(std::string_view text, std::string_view source) {
  try {
    nlohmann::json(std::string(text)).dump();
  } catch (const nlohmann::json::type_error&) {
    throw UsageError({.where = source,
                      .what = "the text is not UTF-8, and the run's files could not hold it",
                      .seen = nlohmann::json(std::string(text))
                                  .dump(-1, ' ', /*ensure_ascii=*/true,
                                        nlohmann::json::error_handler_t::replace),
                      .accepted = "UTF-8",
                      .advice = "rename the file or folder, or name it by a link"});
  }
}

}  // namespace

void wrong(std::string_view source, std::string_view what, std::string_view text,
           const std::string& accepted, const std::string& meant) {
  throw UsageError({.where = source,
                    .what = what,
                    .seen = text,
                    .accepted = accepted,
                    .advice = meant.empty() ? "" : "did you mean " + meant + "?"});
}

int64_t parse_whole(std::string_view text, std::string_view source, int64_t least, int64_t most,
                    std::string_view or_else) {
  const auto value = parse_number<int64_t>(text, source);
  if (value < least || value > most)
    wrong(source, value < least ? "too small" : "too large", text,
          fmt::format("{} to {}{}", least, most, or_else));
  return value;
}

double parse_real(std::string_view text, std::string_view source, double low, double high) {
  const auto value = parse_number<double>(text, source);
  if (!(value >= low && value <= high))
    wrong(source, "out of range", text,
          high == kInfinity ? fmt::format("{} or more", low) : fmt::format("{} to {}", low, high));
  if (!std::isfinite(value)) wrong(source, "not finite", text, "a finite number");
  return value;
}

std::string to_text(double value) { return fmt::format("{}", value); }

bool parse_flag(std::string_view text, std::string_view source) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
  wrong(source, "neither true nor false", text, "true, false, 1, 0, yes, no, on, off");
}

void require_text(std::string_view text, std::string_view source,
                  const std::vector<std::string>& accepted) {
  if (!accepted.empty() && std::ranges::find(accepted, text) == accepted.end())
    throw UsageError({.where = source,
                      .what = "not accepted",
                      .seen = text,
                      .advice = did_you_mean(text, accepted)});
  require_utf8(text, source);
}

std::string either(std::span<const std::string> words, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text.append(i == 0 ? "" : i + 1 == words.size() ? last : ", ").append(words[i]);
  return text;
}

}  // namespace demi::values

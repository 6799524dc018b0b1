#include "lab/settings/setting_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::settings {
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

Setting whole(std::string name, std::string group, int64_t Config::*field, int64_t least,
              std::string help, int64_t most) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "INT",
          .is_flag = false,
          .get = [field](const Config& c) { return std::to_string(c.*field); },
          .set =
              [field, least, most](Config& c, std::string_view text, std::string_view source) {
                c.*field = parse_whole(text, source, least, most);
              }};
}

// Numbers in [low, high].
Setting real(std::string name, std::string group, double Config::*field, double low, double high,
             std::string help) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "FLOAT",
          .is_flag = false,
          .get = [field](const Config& c) { return fmt::format("{}", c.*field); },
          .set =
              [field, low, high](Config& c, std::string_view text, std::string_view source) {
                const auto value = parse_number<double>(text, source);
                if (!(value >= low && value <= high))
                  wrong(source, "out of range", text,
                        high == kInfinity ? fmt::format("{} or more", low)
                                          : fmt::format("{} to {}", low, high));
                if (!std::isfinite(value)) wrong(source, "not finite", text, "a finite number");
                c.*field = value;
              }};
}

Setting words(std::string name, std::string group, std::string Config::*field, std::string help,
              const std::vector<std::string>& accepted) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "TEXT",
          .is_flag = false,
          .get = [field](const Config& c) { return c.*field; },
          .set =
              [field, accepted](Config& c, std::string_view text, std::string_view source) {
                if (!accepted.empty() && std::ranges::find(accepted, text) == accepted.end())
                  throw UsageError({.where = source,
                                    .what = "not accepted",
                                    .seen = text,
                                    .advice = did_you_mean(text, accepted)});
                require_utf8(text, source);
                c.*field = text;
              },
          .accepted = accepted};
}

Setting flag(std::string name, std::string group, bool Config::*field, std::string help) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "",
          .is_flag = true,
          .get = [field](const Config& c) { return std::string(c.*field ? "true" : "false"); },
          .set =
              [field](Config& c, std::string_view text, std::string_view source) {
                if (text == "true" || text == "1" || text == "yes" || text == "on") {
                  c.*field = true;
                } else if (text == "false" || text == "0" || text == "no" || text == "off") {
                  c.*field = false;
                } else {
                  wrong(source, "neither true nor false", text,
                        "true, false, 1, 0, yes, no, on, off");
                }
              }};
}

}  // namespace demi::settings

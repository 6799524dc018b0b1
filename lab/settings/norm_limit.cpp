#include "lab/settings/norm_limit.h"

#include <charconv>
#include <cmath>

#include "demi/core/error.h"

namespace demi::settings {

std::optional<optim::NormLimit> norm_limit_of(std::string_view text, std::string_view source) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const bool is_number = error == std::errc() && std::isfinite(value) && value >= 0;
  if (is_number && unit.empty() && value == 0) return std::nullopt;
  if (is_number && unit.empty()) return optim::NormLimit{.bound = value};
  if (is_number && unit == "sd" && value > 0) return optim::NormLimit{.deviations = value};
  throw UsageError({.where = source,
                    .what = "not a limit of a norm",
                    .seen = text,
                    .accepted = "a number above 0 (the norm itself), one with sd behind it "
                                "(standard deviations above the mean), or 0"});
}

}  // namespace demi::settings

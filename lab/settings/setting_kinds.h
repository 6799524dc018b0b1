#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "lab/settings/config.h"

// What kinds of settings there are: a whole number, a real one, a text or word, a flag.
namespace demi::settings {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Ceilings keep sums and products of settings within 63 bits.
inline constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMostFeatures = int64_t{1} << 24;  // of a layer
inline constexpr int64_t kMostPixels = 1 << 15;             // of a side

/// Throws UsageError: what is wrong with the text, what is accepted, what was meant.
[[noreturn]] void wrong(std::string_view source, std::string_view what, std::string_view text,
                        const std::string& accepted, const std::string& meant = "");

/// The number of that text. Throws UsageError: not a whole number, or out of [least, most]
/// ("1 to 9, or auto").
int64_t parse_whole(std::string_view text, std::string_view source, int64_t least, int64_t most,
                    std::string_view or_else = "");

/// Whole numbers in [least, most].
Setting whole(std::string name, std::string group, int64_t Config::*field, int64_t least,
              std::string help, int64_t most = kMost);

/// Finite numbers in [low, high].
Setting real(std::string name, std::string group, double Config::*field, double low, double high,
             std::string help);

/// A text in UTF-8, or one word of a list.
Setting words(std::string name, std::string group, std::string Config::*field, std::string help,
              const std::vector<std::string>& accepted = {});

/// A switch.
Setting flag(std::string name, std::string group, bool Config::*field, std::string help);

}  // namespace demi::settings

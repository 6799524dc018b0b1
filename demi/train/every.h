#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

/// The minutes of a time such as "11h50m", "1.5h", "10min", "90s": hours, minutes and seconds in
/// this order, each at most once. nullopt for other text.
DEMI_API std::optional<double> minutes_in(std::string_view text);

/// The interval at which something is done in a run. A measure of 0 does not count; of several
/// measures each makes it due.
struct Every {
  /// Optimizer steps.
  int64_t steps = 0;
  /// Epochs; due at the end of an epoch, after its validation.
  int64_t epochs = 0;
  /// Minutes of the clock since the last time; looked at after each step.
  double minutes = 0;

  /// Reads "400" (steps), "1epoch" or "2epochs", and a time as minutes_in; "0" is never. Throws
  /// UsageError for other text.
  DEMI_API static Every parse(std::string_view text);
  /// The text that parse() reads; of several measures the first one's.
  DEMI_API std::string to_string() const;

  /// Whether no measure is set.
  bool is_never() const { return steps == 0 && epochs == 0 && minutes == 0; }
  bool operator==(const Every&) const = default;
};

/// The text without blanks if Every::parse reads it then: "1epoch" for "1 epoch". "" for other
/// text, and for text without blanks.
DEMI_API std::string every_meant(std::string_view text);

}  // namespace demi::train

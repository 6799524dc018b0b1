#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

/// The minutes of a time such as "11h50m", "1.5h", "10min", "90s": hours, minutes and seconds in
/// this order, each at most once. Nothing for other text.
DEMI_API std::optional<double> minutes_in(std::string_view text);

/// How often something is done in a run. 0: not by this measure; if several are given, whenever one
/// of them is due.
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
  /// The text that parse() reads. Of several measures the first.
  DEMI_API std::string to_string() const;

  /// Whether no measure is set.
  bool is_never() const { return steps == 0 && epochs == 0 && minutes == 0; }
  bool operator==(const Every&) const = default;
};

/// What Every::parse reads where `text` has blanks too many: "1epoch" for "1 epoch". "" for other
/// text.
DEMI_API std::string every_meant(std::string_view text);

}  // namespace demi::train

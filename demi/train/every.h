#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

/// How often something is done in a run. 0: not by this measure; if several are given, whenever one
/// of them is due.
struct Every {
  /// Optimizer steps.
  int64_t steps = 0;
  /// Epochs; due at the end of an epoch, after its validation.
  int64_t epochs = 0;
  /// Minutes of the clock since the last time; looked at after each step.
  double minutes = 0;

  /// Reads "400" (steps), "1epoch" or "2epochs", "10min", "1.5h"; "0" is never. Throws UsageError
  /// for other text.
  DEMI_API static Every parse(std::string_view text);
  /// The text that parse() reads. Of several measures the first.
  DEMI_API std::string to_string() const;

  bool is_never() const { return steps == 0 && epochs == 0 && minutes == 0; }
  bool operator==(const Every&) const = default;
};

}  // namespace demi::train

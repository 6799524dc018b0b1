#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "demi/core/export.h"

namespace demi::report {

/// Progress of a run. Empty fields are unknown and not shown.
struct ProgressState {
  std::string run;     // "bf16"; "" if there is only one
  std::string phase;   // "evaluating", "training" and "test" at an epoch's end; "" while training
  std::string remark;  // behind the figures: "saved as the best"
  int epoch = 1;       // from 1
  int epochs = 1;
  std::int64_t step = 0;                 // done in this epoch
  std::int64_t steps = 0;                // of this epoch; 0: not known
  std::optional<double> loss, accuracy;  // accuracy: 0 to 1
  std::optional<std::int64_t> correct;   // of `examples`
  std::int64_t examples = 0;             // that loss and accuracy are of
  std::optional<double> learning_rate;
  std::optional<double> loss_scale;  // a scaler's; empty without one
  std::optional<double> items_per_second;
  std::string items = "images";
  std::optional<double> memory_bytes;  // peak
};

/// The progress line, at most `width` columns wide (0: no limit): what matters least goes first.
DEMI_API std::string progress_line(const ProgressState& state,
                                   std::optional<std::chrono::duration<double>> left,
                                   std::size_t width, bool utf8, bool colour, bool bar);

}  // namespace demi::report

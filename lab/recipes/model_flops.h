#pragma once

#include <cstdint>
#include <optional>

#include "demi/core/export.h"
#include "demi/train/history.h"

namespace demi::recipes {

/// The speed of training a language model: in tokens, and in the operations of the model itself,
/// without the run's others (recomputation, optimizer).
struct ModelFlops {
  double tokens_per_second = 0;  // that were trained on
  double per_token = 0;          // multiplications and additions, forward and backward
  double peak_per_second = 0;    // of products in the run's precision, all ranks; 0: not measured

  /// Operations of the model a second.
  double per_second() const { return per_token * tokens_per_second; }

  /// The share of the measured peak: model FLOPs utilization (Chowdhery et al., 2022, "PaLM",
  /// section 4.1).
  std::optional<double> share() const {
    if (peak_per_second <= 0) return std::nullopt;
    return per_second() / peak_per_second;
  }
};

/// The rates over all epochs of the history, whose examples have so many tokens each; none without
/// an epoch.
DEMI_API std::optional<ModelFlops> model_flops(const train::History& history,
                                               int64_t tokens_of_example, double per_token,
                                               double peak_per_second);

}  // namespace demi::recipes

#pragma once

#include "lab/report/progress.h"

namespace demi::report {

/// A state in which everything is known.
inline ProgressState full() {
  return {.run = "bf16",
          .epoch = 2,
          .epochs = 3,
          .step = 143,
          .steps = 235,
          .loss = 0.3120,
          .accuracy = 0.8891,
          .correct = 32541,
          .examples = 36600,
          .learning_rate = 2.8e-3,
          .loss_scale = 65536,
          .items_per_second = 3214,
          .memory_bytes = 1.2e9};
}

}  // namespace demi::report

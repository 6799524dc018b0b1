#pragma once

#include <cstdint>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/safetensors_layout.h"

namespace demi::checkpoint {

/// Both safetensors files of a checkpoint, which has to outlive them.
struct Layouts {
  /// Throws UsageError for what the files and the manifest cannot hold.
  explicit Layouts(const Checkpoint& checkpoint);

  SafetensorsLayout model, state;
};

/// Throws UsageError for a negative step or count.
void check_options(int64_t step, const SaveOptions& options);

}  // namespace demi::checkpoint

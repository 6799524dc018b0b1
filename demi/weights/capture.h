#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

/// Copies of weights and captured graphs (CUDA graphs). A replay runs no host code, so a recorded
/// use of a copy would go on reading what the last eager step or cast left.
namespace demi::weights {

/// Whether the step that refreshes the copies is captured with the forward in one graph. False
/// (default): a use while the current stream is being captured records a cast, so that a replay
/// reads the weight as it is then. LibTorch before 2.15 cannot tell that it captures: use
/// AutocastOptions{.cache_enabled = false} there. Any thread.
DEMI_API void set_captures_step(bool captures);

/// True where the op about to use this parameter has to cast it because the device's current stream
/// is recording.
bool records_cast(const at::Tensor& parameter);

}  // namespace demi::weights

#pragma once

#include "demi/core/export.h"

/// Copies of weights in captured graphs (CUDA graphs). A replay runs no host code, so a recorded
/// use of a copy reads the values of the last eager step or cast.
namespace demi::weights {

/// Whether the step that refreshes the copies is captured in one graph with the forward pass. False
/// (default): a use while the current stream is captured records a cast, so a replay reads the
/// weight as it is then. True: such a use reads the copy if it is valid. After a write to the
/// weight between replays, use the weight once in a region before the next replay, which refreshes
/// the copy. LibTorch before 2.15 cannot tell that a stream is captured: capture with
/// AutocastOptions{.cache_enabled = false} there. Any thread.
DEMI_API void set_captures_step(bool captures);
bool captures_step();

}  // namespace demi::weights

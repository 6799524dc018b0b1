#pragma once

#include "demi/core/export.h"

/// Copies of weights and captured graphs (CUDA graphs). A replay runs no host code, so a recorded
/// use of a copy would go on reading what the last eager step or cast left.
namespace demi::weights {

/// Whether the step that refreshes the copies is captured with the forward in one graph. False
/// (default): a use while the current stream is being captured records a cast, so that a replay
/// reads the weight as it is then. True: it reads the copy where that is valid during the capture,
/// so that whoever writes the weight between replays has to use it once in a region (which
/// refreshes the copy) before the next replay. LibTorch before 2.15 cannot tell that it captures:
/// use AutocastOptions{.cache_enabled = false} there. Any thread.
DEMI_API void set_captures_step(bool captures);
bool captures_step();

}  // namespace demi::weights

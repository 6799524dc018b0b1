#pragma once

#include <c10/core/Stream.h>

namespace demi::tensor {

/// Whether a device's stream is being captured into a graph. LibTorch's device guards can tell from
/// 2.15 on; with an older one the answer is false.
template <class Guard>
bool is_capturing(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); })
    return guard.isStreamCapturing(stream);
  else
    return false;
}

}  // namespace demi::tensor

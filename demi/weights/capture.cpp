#include "demi/weights/capture.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>

namespace demi::weights {
namespace {

std::atomic<bool> step_is_captured{false};

template <class Guard>
bool is_capturing(const c10::Device& device) {
  if constexpr (requires(const Guard& guard, const c10::Stream& stream) {
                  guard.isStreamCapturing(stream);
                }) {
    const Guard guard(device.type());
    return guard.isStreamCapturing(guard.getStream(device));
  } else {
    return false;
  }
}

}  // namespace

void set_captures_step(bool captures) { step_is_captured = captures; }

bool records_cast(const at::Tensor& parameter) {
  return parameter.is_cuda() && !step_is_captured.load(std::memory_order_relaxed) &&
         is_capturing<c10::impl::VirtualGuardImpl>(parameter.device());
}

}  // namespace demi::weights

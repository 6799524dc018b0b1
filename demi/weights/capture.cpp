#include "demi/weights/capture.h"

#include <atomic>

namespace demi::weights {
namespace {

constinit std::atomic<bool> step_is_captured = false;

}  // namespace

void set_captures_step(bool captures) { step_is_captured = captures; }

bool captures_step() { return step_is_captured.load(std::memory_order_relaxed); }

}  // namespace demi::weights

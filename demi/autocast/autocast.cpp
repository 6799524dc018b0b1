#include "demi/autocast/autocast.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <atomic>
#include <thread>
#include <vector>

#include "demi/autocast/call.h"
#include "demi/autocast/slow_dtype.h"
#include "demi/core/error.h"
#include "demi/weights/weights.h"

namespace demi {

// What was set outside the region.
struct Autocast::Frame {
  c10::DeviceType device;
  c10::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  bool enabled = at::autocast::is_autocast_enabled(device);
  bool cache_enabled = at::autocast::is_autocast_cache_enabled();
  const OpTable* table = thread_tables[static_cast<int>(device)];
  std::thread::id thread = std::this_thread::get_id();
  std::atomic<bool> closed = false;

  explicit Frame(c10::DeviceType on) : device(on) {}
};

// The open regions of a thread, outermost first.
struct Autocast::Stack {
  std::vector<std::shared_ptr<Frame>> frames;

  static Stack& of_this_thread() {
    static thread_local Stack stack;
    return stack;
  }

  // Restores what the closed regions on top had found. One that is closed below an open one waits.
  void unwind() {
    while (!frames.empty() && frames.back()->closed) {
      const Frame& top = *frames.back();
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(top.device, top.enabled);
      at::autocast::set_autocast_dtype(top.device, top.dtype);
      at::autocast::set_autocast_cache_enabled(top.cache_enabled);
      thread_tables[static_cast<int>(top.device)] = top.table;
      frames.pop_back();
      weights::leave_region();
    }
  }
};

namespace {

std::string lower_case_name(c10::DeviceType device) {
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

void check_device(c10::DeviceType device) {
  if (at::autocast::is_autocast_available(device)) return;
  std::string accepted;
  for (const auto known : at::autocast::_AUTOCAST_SUPPORTED_DEVICES)
    accepted += (accepted.empty() ? "" : ", ") + lower_case_name(known);
  throw UsageError({.where = "autocast.Autocast",
                    .what = "this device type has no autocast",
                    .seen = lower_case_name(device),
                    .accepted = accepted});
}

void check_dtype(c10::ScalarType dtype) {
  if (is_16_bit(dtype)) return;
  throw UsageError({.where = "autocast.Autocast",
                    .what = "a region cannot run in this dtype",
                    .seen = c10::toString(dtype),
                    .accepted = "fp16, bf16",
                    .advice = "for FP32 leave the region out, or enter it with enabled = false"});
}

AutocastOptions options_of(const Policy& policy) {
  const bool low = is_16_bit(policy.compute_dtype());
  if (!low) return {.enabled = false};
  static const auto* fp32_softmax = new OpPolicy(OpPolicy::named("fp32_softmax"));
  return {.dtype = policy.compute_dtype(), .policy = *fp32_softmax};
}

constexpr const char* kWrongThread =
    "a region was left in another thread than the one that entered it; its thread leaves it when "
    "it next enters or leaves "
    "one";
constexpr const char* kWrongOrder =
    "a region was left while one that was entered later is still open; it ends when that one does";

}  // namespace

Autocast::Autocast(c10::DeviceType device, AutocastOptions options) {
  check_device(device);
  if (options.dtype) check_dtype(*options.dtype);
  const auto dtype = options.dtype.value_or(at::autocast::get_autocast_dtype(device));
  if (options.enabled) {
    global_table(device);  // the kernels
    warn_where_slow(device, dtype);
  }
  const OpTable*& table = thread_tables[static_cast<int>(device)];
  const OpTable* const inner_table = options.policy ? table_of(*options.policy, device) : table;
  Stack& stack = Stack::of_this_thread();
  stack.unwind();
  frame_ = std::make_shared<Frame>(device);
  stack.frames.push_back(frame_);
  table = inner_table;
  at::autocast::set_autocast_enabled(device, options.enabled);
  if (options.dtype) at::autocast::set_autocast_dtype(device, *options.dtype);
  at::autocast::set_autocast_cache_enabled(options.cache_enabled);
  at::autocast::increment_nesting();
  weights::enter_region();
}

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype)
    : Autocast(device, AutocastOptions{.dtype = dtype}) {}

Autocast::Autocast(c10::DeviceType device, const Policy& policy)
    : Autocast(device, options_of(policy)) {}

Autocast::Autocast()
    : Autocast(at::globalContext().hasCUDA() ? c10::DeviceType::CUDA : c10::DeviceType::CPU,
               global_policy()) {}

Autocast::~Autocast() { close(); }

Autocast::Autocast(Autocast&&) noexcept = default;

Autocast& Autocast::operator=(Autocast&& other) noexcept {
  if (this == &other) return *this;
  close();
  frame_ = std::move(other.frame_);
  return *this;
}

void Autocast::leave() {
  if (!frame_) return;
  Stack& stack = Stack::of_this_thread();
  const bool here = frame_->thread == std::this_thread::get_id();
  if (here) stack.unwind();
  if (!here || stack.frames.back() != frame_)
    throw UsageError(
        {.where = "autocast.leave",
         .what = "a region must be left in the thread and in the order in which it was entered",
         .seen = here ? "one that was entered later is still open" : "another thread",
         .advice = "nothing was changed; leave the inner region first, in its own thread"});
  close();
}

// Never throws: a destructor calls it. What was wrong is said by a warning.
void Autocast::close() noexcept {
  if (!frame_) return;
  const auto frame = std::move(frame_);
  frame->closed = true;
  try {
    if (frame->thread != std::this_thread::get_id()) {
      TORCH_WARN("[autocast.Autocast] ", kWrongThread);
      return;
    }
    Stack& stack = Stack::of_this_thread();
    const bool in_order = !stack.frames.empty() && stack.frames.back() == frame;
    stack.unwind();
    if (!in_order) TORCH_WARN("[autocast.Autocast] ", kWrongOrder);
  } catch (...) {
  }
}

}  // namespace demi

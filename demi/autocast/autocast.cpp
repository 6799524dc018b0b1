#include "demi/autocast/autocast.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <thread>

#include "demi/autocast/call.h"
#include "demi/autocast/slow_dtype.h"
#include "demi/autocast/thread_tables.h"
#include "demi/core/cuda_library.h"
#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/weights/weights.h"

namespace demi {

namespace {

// LibTorch's cache of casts is a static object: a region of static lifetime may be left after it.
bool cache_is_gone = false;

void watch_libtorchs_cache() {
  struct Watch {
    Watch() { at::autocast::clear_cache(); }  // makes the cache, so that it goes after this
    ~Watch() { cache_is_gone = true; }
  };
  static const Watch watch;
}

}  // namespace

// The thread's settings outside a region. The open regions of a thread are linked, innermost first,
// from a word of static TLS, which nothing destroys: regions of static lifetime outlive their
// thread.
struct Autocast::Frame {
  c10::DeviceType device;
  c10::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  bool enabled = at::autocast::is_autocast_enabled(device);
  bool cache_enabled = at::autocast::is_autocast_cache_enabled();
  const OpTable* table = thread_tables[static_cast<int>(device)];
  std::optional<std::shared_ptr<RegionState>> inherited;  // where the region changes it
  std::thread::id thread = std::this_thread::get_id();
  std::atomic<bool> closed = false;
  Frame* outer = nullptr;
  std::shared_ptr<Frame> self;  // while the thread has it open

  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit Frame* innermost =
      nullptr;

  explicit Frame(c10::DeviceType on) : device(on) {}

  struct AtThreadsEnd {
    ~AtThreadsEnd() {
      for (Frame* frame = innermost; frame; frame = frame->outer) frame->closed = true;
      unwind();
    }
  };

  static std::shared_ptr<Frame> open(c10::DeviceType device) {
    static thread_local const AtThreadsEnd end_all;
    auto frame = std::make_shared<Frame>(device);
    frame->outer = innermost;
    frame->self = frame;
    innermost = frame.get();
    return frame;
  }

  // Restores the state that the closed regions on top had found. A region that is closed below an
  // open one waits.
  static void unwind() {
    while (innermost && innermost->closed) {
      const auto top = std::move(innermost->self);
      innermost = top->outer;
      if (at::autocast::decrement_nesting() == 0 && !cache_is_gone) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(top->device, top->enabled);
      at::autocast::set_autocast_dtype(top->device, top->dtype);
      at::autocast::set_autocast_cache_enabled(top->cache_enabled);
      thread_tables[static_cast<int>(top->device)] = top->table;
      if (top->inherited) RegionState::set(*top->inherited);
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
  refuse({.where = "autocast.Autocast",
          .what = "this device type has no autocast",
          .seen = lower_case_name(device),
          .accepted = accepted});
}

c10::ScalarType checked(std::optional<c10::ScalarType> given, c10::DeviceType device) {
  const auto dtype = given.value_or(at::autocast::get_autocast_dtype(device));
  if (is_16_bit(dtype)) return dtype;
  const char* what = given ? "a region cannot run in this dtype"
                           : "a region without a dtype takes the one that is set, and "
                             "at::autocast::set_autocast_dtype has set one that none can run in";
  refuse({.where = "autocast.Autocast",
          .what = what,
          .seen = c10::toString(dtype),
          .accepted = "fp16, bf16",
          .advice = given ? "for FP32 leave the region out, or enter it with enabled = "
                            "false"
                          : "name the region's dtype"});
}

AutocastOptions options_of(const Policy& policy) {
  const bool low = is_16_bit(policy.compute_dtype());
  if (!low) return {.enabled = false};
  static const auto* fp32_softmax = new OpPolicy(OpPolicy::named("fp32_softmax"));
  return {.dtype = policy.compute_dtype(), .policy = *fp32_softmax};
}

// LibTorch asks for CUDA once a process, so it has to be there before.
c10::DeviceType first_choice() {
  load_cuda();
  return at::globalContext().hasCUDA() ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
}

// Warns once for each device type, as Python does.
void warn_where_absent(c10::DeviceType device) {
  static std::array<std::atomic<bool>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> warned{};
  auto& here = warned[static_cast<std::size_t>(device)];
  if (device == c10::DeviceType::CPU || here.load(std::memory_order_relaxed)) return;
  if (c10::impl::hasDeviceGuardImpl(device) && c10::impl::getDeviceGuardImpl(device)->deviceCount())
    return;
  if (here.exchange(true)) return;
  const std::string name = lower_case_name(device);
  TORCH_WARN(
      "[autocast.Autocast] a region for ", name, " without any ", name,
      " device: it changes nothing, and tensors on the CPU run in the dtypes that they have. "
      "Name the device that the tensors are on: demi::Autocast region(torch::kCPU).");
}

constexpr const char* kWrongThread =
    "a region was left in another thread than the one that entered it; its thread leaves it when "
    "it next enters or leaves "
    "one";
constexpr const char* kWrongOrder =
    "a region was left while one that was entered later is still open; it ends when that one does";

}  // namespace

Autocast::Autocast(c10::DeviceType device, AutocastOptions options)
    : Autocast(device, options, nullptr) {}

// `table` comes before the policy of the options.
Autocast::Autocast(c10::DeviceType device, const AutocastOptions& options, const OpTable* table) {
  require_libtorch();
  check_device(device);
  Frame::unwind();
  std::optional<c10::ScalarType> dtype = options.dtype;
  if (dtype || options.enabled) dtype = checked(dtype, device);
  if (options.enabled) {
    bring_kernels(device);
    warn_where_absent(device);
    warn_where_slow(device, *dtype);
  }
  if (parts_in_use()) forget_dead_parts();
  watch_libtorchs_cache();
  const OpTable* const outer_table = table_in_force(device);
  const bool outer_cache = cache_is_enabled();
  if (!table) table = options.policy ? table_of(*options.policy, device) : outer_table;
  const bool cache = options.cache_enabled.value_or(outer_cache);

  frame_ = Frame::open(device);
  thread_tables[static_cast<int>(device)] = table;
  at::autocast::set_autocast_enabled(device, options.enabled);
  if (dtype) at::autocast::set_autocast_dtype(device, *dtype);
  at::autocast::set_autocast_cache_enabled(cache);
  if (table != outer_table || cache != outer_cache) {
    frame_->inherited = RegionState::of_this_thread();
    RegionState::set(RegionState::snapshot());
  }
  at::autocast::increment_nesting();
  weights::enter_region();
}

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype)
    : Autocast(device, AutocastOptions{.dtype = dtype}) {}

Autocast::Autocast(c10::DeviceType device, const Policy& policy)
    : Autocast(device, options_of(policy)) {}

Autocast::Autocast() : Autocast(first_choice(), global_policy()) {}

Autocast::~Autocast() { close(); }

Autocast::Autocast(Autocast&&) noexcept = default;

Autocast& Autocast::operator=(Autocast&& other) noexcept {
  if (this == &other) return *this;
  close();
  frame_ = std::move(other.frame_);
  return *this;
}

void Autocast::leave() {
  if (frame_ && frame_->closed) frame_.reset();  // at its thread's end
  if (!frame_) return;
  const bool here = frame_->thread == std::this_thread::get_id();
  if (here) Frame::unwind();
  if (!here || Frame::innermost != frame_.get())
    refuse({.where = "autocast.leave",
            .what = "a region must be left in the thread and in the order in which it was entered",
            .seen = here ? "one that was entered later is still open" : "another thread",
            .advice = "nothing was changed; leave the inner region first, in its own thread"});
  close();
}

// Never throws, since a destructor calls it; warns of an error instead.
void Autocast::close() noexcept {
  if (!frame_) return;
  const auto frame = std::move(frame_);
  if (frame->closed.exchange(true)) return;  // at its thread's end
  try {
    if (frame->thread != std::this_thread::get_id()) {
      TORCH_WARN("[autocast.Autocast] ", kWrongThread);
      return;
    }
    const bool in_order = Frame::innermost == frame.get();
    Frame::unwind();
    if (!in_order) {
      TORCH_WARN("[autocast.Autocast] ", kWrongOrder);
    }
  } catch (...) {
  }
}

}  // namespace demi

#pragma once

// Streams of the device of second_device.h, and the capture of their work: the operations of
// LibTorch run for their shapes and are noted by their addresses; what they wrote is put back.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/second_device_memory.h"

namespace second_device {

/// The calling thread's.
inline c10::Stream& current_stream() {
  thread_local c10::Stream stream(c10::Stream::DEFAULT, kDevice);
  return stream;
}

inline c10::Stream stream_of_pool() {
  static std::atomic<c10::StreamId> next = 0;
  return c10::Stream(c10::Stream::UNSAFE, kDevice, 1 + next++ % 32);
}

// The same memory as a tensor of the CPU.
inline at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU).requires_grad(false));
}

/// Calls `use` with each tensor of an operation's argument or result.
template <class Use>
void each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) use(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector())
      if (tensor && tensor->defined()) use(*tensor);
  }
}

/// What a graph knows of a tensor: its address and shape. It does not keep the memory. A number of
/// the CPU is known by its value, as the argument of a kernel.
inline at::Tensor frozen(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  TORCH_CHECK(tensor.layout() == at::kStrided, "a capture takes strided tensors");
  at::Tensor result = tensor.is_cpu()
                          ? tensor.detach().clone()
                          : at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes())
                                .strides(tensor.strides())
                                .options(tensor.options().requires_grad(false))
                                .target_device(kDevice)
                                .make_tensor();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

inline c10::IValue frozen(const c10::IValue& value) {
  if (value.isTensor()) return frozen(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(frozen(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(frozen(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

using Kernel = void(const c10::OperatorHandle&, torch::jit::Stack*);
using Stack = torch::jit::Stack;

/// Whether an operation's kernel runs on this thread: what it calls is part of it.
inline thread_local bool in_kernel = false;

inline void call(const c10::OperatorHandle& op, Stack* stack, Kernel* kernel) {
  const bool before = std::exchange(in_kernel, true);
  struct Restore {
    bool value;
    ~Restore() { in_kernel = value; }
  } restore{before};
  kernel(op, stack);
}

/// Whether an operation writes to its argument of this number.
inline bool writes(const c10::OperatorHandle& op, std::size_t argument) {
  const std::string& name = op.schema().name();
  if (name == "aten::_copy_from" || name == "aten::_copy_from_and_resize") return argument == 1;
  if (name == "aten::native_batch_norm") return argument == 3 || argument == 4;  // of the running
  const c10::AliasInfo* alias = op.schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

/// Whether a GPU would wait for this operation, or LibTorch refuse it, while its stream captures.
inline bool needs_the_host(const c10::OperatorHandle& op, const Stack& arguments) {
  static const std::set<std::string_view> reads{"aten::_local_scalar_dense",
                                                "aten::_unique",
                                                "aten::_unique2",
                                                "aten::bincount",
                                                "aten::equal",
                                                "aten::is_nonzero",
                                                "aten::masked_select",
                                                "aten::nonzero",
                                                "aten::unique_consecutive",
                                                "aten::unique_dim",
                                                "aten::unique_dim_consecutive"};
  static const std::set<std::string_view> copies{"aten::copy_", "aten::_copy_from",
                                                 "aten::_copy_from_and_resize"};
  const std::string& name = op.schema().name();
  if (reads.contains(name)) return true;
  if (name == "aten::repeat_interleave" && op.schema().overload_name() == "Tensor")
    return arguments[1].isNone();  // the size of the result

  bool of_cpu = false, masked = false;
  for (const c10::IValue& argument : arguments) {
    each_tensor(argument, [&](const at::Tensor& tensor) {
      of_cpu |= tensor.is_cpu();
      masked |= argument.isOptionalTensorList() &&
                (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
    });
  }
  // LibTorch refuses a number of the CPU, too: the memory is not pinned.
  if (copies.contains(name)) return of_cpu;
  // A mask that is to be filled with a number has a kernel of its own; others become indices.
  return masked && name.find("index_put") != std::string::npos &&
         (!arguments[2].toTensor().is_cpu() || arguments[3].toBool());
}

/// An operation, to be run again on the same addresses.
struct Note {
  c10::OperatorHandle op;
  Kernel* kernel = nullptr;
  c10::impl::LocalDispatchKeySet keys;
  Stack arguments, results;  // frozen

  void operator()() const {
    const c10::impl::ForceDispatchKeyGuard as_recorded(keys);
    Stack stack = arguments;
    call(op, &stack, kernel);
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::vector<at::Tensor> fresh;
      each_tensor(stack[i], [&](const at::Tensor& tensor) { fresh.push_back(tensor); });
      std::size_t at = 0;
      each_tensor(results[i], [&](const at::Tensor& place) { write(place, fresh.at(at++)); });
    }
  }

 private:
  void write(const at::Tensor& place, const at::Tensor& fresh) const {
    TORCH_CHECK(place.sizes() == fresh.sizes() && place.scalar_type() == fresh.scalar_type(),
                op.schema().name(), ": ", fresh.sizes(), " replayed and ", place.sizes(),
                " recorded");
    if (place.const_data_ptr() != fresh.const_data_ptr()) on_host(place).copy_(on_host(fresh));
  }
};

/// The work of a stream, and of the streams that wait for it, while it is recorded. Any thread.
class Capture {
 public:
  using Work = std::function<void()>;
  using Clock = std::map<c10::StreamId, std::int64_t>;  // how much work of each stream is over

  Capture(c10::StreamId origin, std::shared_ptr<Pool> pool)
      : origin_(origin), pool_(std::move(pool)), seen_{{origin, {}}} {
    save(at::detail::getDefaultCPUGenerator());
  }

  const std::shared_ptr<Pool>& pool() const { return pool_; }
  c10::StreamId origin() const { return origin_; }

  bool holds(c10::StreamId stream) const {
    const std::lock_guard lock(mutex_);
    return seen_.contains(stream);
  }

  /// False if the recording has failed before.
  bool put(c10::StreamId stream, Work work) {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return false;
    ++seen_[stream][stream];
    work_.push_back(std::move(work));
    return true;
  }

  /// The operation's kernel for XPU, on the calling thread's stream.
  void run(const c10::OperatorHandle& op, Stack* stack, Kernel* kernel) {
    const std::string& name = op.schema().name();
    const auto last = torch::jit::last(*stack, op.schema().arguments().size());
    const Stack arguments(last.begin(), last.end());
    TORCH_CHECK(failure().empty(), name,
                ": operation failed due to a previous error during capture");
    if (needs_the_host(op, arguments))
      fail(name, "operation not permitted when stream is capturing");
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].isGenerator()) save(arguments[i].toGenerator());
      if (writes(op, i)) each_tensor(arguments[i], [&](const at::Tensor& t) { save(t); });
    }
    Note note{op, kernel, c10::impl::tls_local_dispatch_key_set(), {}, {}};
    for (const c10::IValue& argument : arguments)  // numbers, before they can change
      note.arguments.push_back(frozen(argument));
    call(op, stack, kernel);
    for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size()))
      note.results.push_back(frozen(result));
    put(current_stream().id(), std::move(note));
  }

  [[noreturn]] void fail(std::string_view where, std::string_view what) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.empty()) failure_ = c10::str(where, ": ", what);
    }
    TORCH_CHECK(false, where, ": ", what);
  }

  Clock clock(c10::StreamId stream) const {
    const std::lock_guard lock(mutex_);
    return seen_.at(stream);
  }
  /// From now on the stream is captured, too, until the origin waits for it.
  void wait(c10::StreamId stream, const Clock& until) {
    if (stream == 0) fail("wait", "the default stream cannot depend on a stream that is capturing");
    const std::lock_guard lock(mutex_);
    Clock& clock = seen_[stream];
    for (const auto& [of, work] : until) clock[of] = std::max(clock[of], work);
  }

  /// Puts back what the operations have changed. The caller has ended the capture.
  std::vector<Work> finish() {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, saved] : memory_) Blocks::all().put_back(saved);
    for (auto& [generator, state] : generators_) {
      const std::lock_guard of(generator.mutex());
      generator.set_state(state);
    }
    for (const auto& [stream, clock] : seen_) {
      const auto own = clock.find(stream);
      if (failure_.empty() && own != clock.end() && seen_[origin_][stream] < own->second)
        failure_ = "end: a stream that joined the capture has work that nobody waits for";
    }
    return std::move(work_);
  }
  /// The blocks of memory from before it that LibTorch's operations write to.
  std::vector<std::byte*> written() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*> blocks;
    for (const auto& [data, saved] : memory_) blocks.push_back(data);
    return blocks;
  }
  /// Why this cannot be replayed; empty if it can.
  std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void save(const at::Tensor& tensor) {
    const void* address = tensor.is_cpu() ? nullptr : tensor.const_data_ptr();
    if (!address) return;
    std::optional<Blocks::Saved> saved = Blocks::all().save(address);
    const std::lock_guard lock(mutex_);
    if (saved) memory_.emplace(saved->data, std::move(*saved));
  }
  void save(at::Generator generator) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, state] : generators_)
      if (known == generator) return;
    const std::lock_guard of(generator.mutex());
    generators_.emplace_back(generator, generator.get_state());
  }

  c10::StreamId origin_;
  std::shared_ptr<Pool> pool_;

  mutable std::mutex mutex_;
  std::map<c10::StreamId, Clock> seen_;  // by stream
  std::vector<Work> work_;
  std::string failure_;
  std::map<std::byte*, Blocks::Saved> memory_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;  // with its state
};

/// The capture that is under way: one at a time.
class UnderWay {
 public:
  static std::shared_ptr<Capture> get() {
    const std::lock_guard lock(all().mutex);
    return all().capture;
  }
  /// The one that records this stream, or null.
  static std::shared_ptr<Capture> on(c10::StreamId stream) {
    auto capture = get();
    return capture && capture->holds(stream) ? capture : nullptr;
  }
  /// False if there is another one.
  static bool begin(std::shared_ptr<Capture> capture) {
    const std::lock_guard lock(all().mutex);
    if (all().capture) return false;
    all().capture = std::move(capture);
    return true;
  }
  static void end() {
    const std::lock_guard lock(all().mutex);
    all().capture = nullptr;
  }

 private:
  struct State {
    std::mutex mutex;
    std::shared_ptr<Capture> capture;
  };
  static State& all() {
    static auto* state = new State;  // never destroyed: tensors are freed at exit
    return *state;
  }
};

/// Runs an operation's kernel for XPU, and notes it if a graph records the stream.
inline void run(const c10::OperatorHandle& op, Stack* stack, Kernel* kernel) {
  const auto capture = in_kernel ? nullptr : UnderWay::on(current_stream().id());
  const at::DisableRecordFunctionGuard unobserved;  // what the CPU does in its place
  capture ? capture->run(op, stack, kernel) : kernel(op, stack);
}

inline void require_no_capture(std::string_view what) {
  if (const auto capture = UnderWay::on(current_stream().id()))
    capture->fail(what, "operation not permitted when stream is capturing");
}

struct Event {
  std::shared_ptr<Capture> capture;  // null: recorded outside of one
  Capture::Clock clock;

  static Event of(c10::StreamId stream) {
    const auto capture = UnderWay::on(stream);
    return capture ? Event{capture, capture->clock(stream)} : Event();
  }
  void block(c10::StreamId stream) const {
    if (!capture) {
      if (const auto waiting = UnderWay::on(stream))
        waiting->fail("wait", "dependency created on uncaptured work in another stream");
      return;
    }
    TORCH_CHECK(capture == UnderWay::get(),
                "operation not permitted on an event last recorded in a capturing stream");
    capture->wait(stream, clock);
  }
};

}  // namespace second_device

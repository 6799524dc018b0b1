#include "demi/data/prefetch_loader.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <omp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "demi/core/error.h"

namespace demi::data {
namespace {

/// Copies batches to a device on a stream of its own.
class DeviceCopy {
 public:
  explicit DeviceCopy(c10::Device device)
      : guard_(device.type()),
        stream_(guard_.getStreamFromGlobalPool(with_index(device))),
        event_(device.type()) {}

  Batch operator()(const Batch& host) {
    const c10::StreamGuard on_own_stream(stream_);
    Batch copy{.input = send(host.input), .target = send(host.target), .lengths = host.lengths};
    event_.record(stream_);
    return copy;
  }

  /// Lets the caller's stream wait for the copy, and keeps the memory until that stream is done
  /// with it.
  void hand_over(const Batch& batch) {
    const c10::Stream current = guard_.getStream(stream_.device());
    event_.block(current);
    for (const at::Tensor* tensor : {&batch.input, &batch.target})
      if (tensor->defined()) tensor->record_stream(current);
  }

 private:
  c10::Device with_index(c10::Device device) const {
    return device.has_index() ? device : guard_.getDevice();
  }

  at::Tensor send(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    return tensor.pin_memory().to(stream_.device(), tensor.scalar_type(), /*non_blocking=*/true);
  }

  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
  c10::Event event_;
};

/// One batch on its way.
struct Slot {
  int64_t epoch, position;
  bool taken = false, ready = false;
  Batch batch{};
  std::exception_ptr error{};
  std::optional<DeviceCopy> copy{};
};

}  // namespace

/// The slots in the order in which they are expected, and the threads that fill them.
class PrefetchLoader::Pipeline {
 public:
  Pipeline(const Loader& inner, const PrefetchOptions& options) : inner_(inner), options_(options) {
    for (int64_t i = 0; i < options.workers; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Pipeline() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Batch take(int64_t epoch, int64_t position) {
    std::unique_lock lock(mutex_);
    while (!slots_.empty() &&
           !(slots_.front()->epoch == epoch && slots_.front()->position == position))
      slots_.pop_front();  // a jump: what was guessed is not wanted
    if (slots_.empty()) plan(epoch, position);
    const std::shared_ptr<Slot> slot = slots_.front();
    slots_.pop_front();
    while (static_cast<int64_t>(slots_.size()) < options_.depth)
      plan_after(slots_.empty() ? *slot : *slots_.back());
    wanted_.notify_all();
    const auto start = std::chrono::steady_clock::now();
    // This one is no longer among the slots: where no thread has it yet, it is made here.
    if (!slot->taken) {
      slot->taken = true;
      lock.unlock();
      fill(*slot);
      lock.lock();
    }
    filled_.wait(lock, [&] { return slot->ready; });
    seconds_waited_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    lock.unlock();
    if (slot->error) std::rethrow_exception(slot->error);
    if (slot->copy) slot->copy->hand_over(slot->batch);
    return std::move(slot->batch);
  }

  double seconds_waited() const {
    const std::lock_guard lock(mutex_);
    return seconds_waited_;
  }

 private:
  void plan(int64_t epoch, int64_t position) {
    slots_.push_back(std::make_shared<Slot>(Slot{.epoch = epoch, .position = position}));
  }

  void plan_after(const Slot& last) {
    const bool more = last.position + 1 < inner_.batches();
    plan(more ? last.epoch : last.epoch + 1, more ? last.position + 1 : 0);
  }

  std::shared_ptr<Slot> next_slot() {
    for (const auto& slot : slots_)
      if (!slot->taken) return slot;
    return nullptr;
  }

  void work() {
    omp_set_num_threads(1);  // of this thread: the cores belong to the step
    std::unique_lock lock(mutex_);
    for (;;) {
      std::shared_ptr<Slot> slot;
      wanted_.wait(lock, [&] { return stopping_ || (slot = next_slot()) != nullptr; });
      if (stopping_) return;
      slot->taken = true;
      lock.unlock();
      fill(*slot);
      lock.lock();
    }
  }

  void fill(Slot& slot) {
    Batch batch;
    std::exception_ptr error;
    try {
      const at::NoGradGuard no_grad;
      batch = inner_.batch(slot.epoch, slot.position);
      if (!options_.device.is_cpu()) batch = slot.copy.emplace(options_.device)(batch);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    slot.batch = std::move(batch);
    slot.error = error;
    slot.ready = true;
    filled_.notify_all();
  }

  const Loader& inner_;
  PrefetchOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wanted_, filled_;
  std::deque<std::shared_ptr<Slot>> slots_;
  bool stopping_ = false;
  double seconds_waited_ = 0;
  std::vector<std::thread> threads_;
};

PrefetchLoader::PrefetchLoader(std::shared_ptr<const Loader> inner, const PrefetchOptions& options)
    : inner_(std::move(inner)) {
  const auto require = [](std::string_view what, int64_t value) {
    if (value < 1)
      throw UsageError({.where = "data.PrefetchLoader",
                        .what = what,
                        .seen = fmt::to_string(value),
                        .accepted = ">= 1"});
  };
  require("workers is too small", options.workers);
  require("depth is too small", options.depth);
  pipeline_ = std::make_unique<Pipeline>(*inner_, options);
}

PrefetchLoader::~PrefetchLoader() = default;

Batch PrefetchLoader::batch(int64_t epoch, int64_t position) const {
  return pipeline_->take(epoch, position);
}

double PrefetchLoader::seconds_waited() const { return pipeline_->seconds_waited(); }

}  // namespace demi::data

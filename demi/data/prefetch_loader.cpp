#include "demi/data/prefetch_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/to_device.h"

namespace demi::data {
namespace {

/// A stream of the device on which batches are made and copied, beside those that compute. An event
/// covers only the earlier work of its own stream, so all work of a batch is put on this one: the
/// workers' current stream would be the default one.
class SideStream {
 public:
  explicit SideStream(c10::Device device)
      : guard_(device.type()), stream_(guard_.getStreamFromGlobalPool(with_index(device))) {
    // The tensors that the inner loader keeps on the device were made on the stream that is current
    // here.
    wait_for(current(), stream_);
  }
  ~SideStream() {
    try {
      wait_for(stream_, current());  // before the inner loader's memory is given to others
    } catch (...) {
      // The device is gone, and its work with it.
    }
  }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// The inner loader's batch on the device; `done` stands behind all of its work.
  Batch make(const Loader& inner, int64_t epoch, int64_t position, c10::Event& done) const {
    const c10::StreamGuard on_this_stream(stream_);
    Batch batch = to_device(inner.batch(epoch, position), stream_.device());
    done.record(stream_);
    return batch;
  }

  /// Lets the caller's stream wait for the batch, and keeps its memory until that stream is done
  /// with it.
  void hand_over(const Batch& batch, c10::Event& done) const {
    const c10::Stream to = current();
    done.block(to);
    for (const at::Tensor* tensor : {&batch.input, &batch.target, &batch.lengths})
      if (tensor->defined() && !tensor->is_cpu()) tensor->record_stream(to);
  }

 private:
  c10::Device with_index(c10::Device device) const {
    return device.has_index() ? device : guard_.getDevice();
  }
  c10::Stream current() const { return guard_.getStream(stream_.device()); }

  static void wait_for(const c10::Stream& earlier, const c10::Stream& later) {
    c10::Event event(earlier.device_type());
    event.record(earlier);
    event.block(later);
  }

  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
};

/// A batch that is being made.
struct Slot {
  int64_t epoch, position;
  bool taken = false, ready = false;
  Batch batch{};
  std::exception_ptr error{};
  std::optional<c10::Event> done{};  // on the side stream
};

}  // namespace

/// The slots in the order in which they are expected, and the threads that fill them.
class PrefetchLoader::Pipeline {
 public:
  Pipeline(const Loader& inner, const PrefetchOptions& options) : inner_(inner), options_(options) {
    if (!options.device.is_cpu()) side_.emplace(options.device);
    try {
      for (int64_t i = 0; i < options.workers; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      stop();
      refuse({.where = "data.PrefetchLoader",
              .what = "the system gives fewer threads than there are workers",
              .seen = fmt::format("{} workers: {}", options.workers, error.what()),
              .accepted = fmt::format("{} here and now", threads_.size()),
              .advice = "ask for fewer, or raise what limits this process (ulimit -u, ulimit -v, "
                        "pids.max of its control group)"});
    }
  }

  ~Pipeline() { stop(); }

  Batch take(int64_t epoch, int64_t position) {
    std::unique_lock lock(mutex_);
    while (!slots_.empty() &&
           !(slots_.front()->epoch == epoch && slots_.front()->position == position))
      slots_.pop_front();  // a jump: the batches made ahead are not wanted
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
    if (side_) side_->hand_over(slot->batch, *slot->done);
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

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Limits this thread to one core, since the others compute the step. LibTorch sets a thread's
  // number of threads to the process's when the thread first asks for it, once in each library, so
  // setting the number alone does not last.
  void work() {
    at::get_num_threads();
    omp_set_num_threads(1);  // of this thread
#pragma omp teams num_teams(1) thread_limit(1)
    make_batches();
  }

  void make_batches() {
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
      batch = side_ ? side_->make(inner_, slot.epoch, slot.position,
                                  slot.done.emplace(options_.device.type()))
                    : inner_.batch(slot.epoch, slot.position);
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
  std::optional<SideStream> side_;  // none on a CPU
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
  if (!inner_)
    throw UsageError({.where = "data.PrefetchLoader",
                      .what = "there is no loader to prefetch from",
                      .seen = "a null pointer",
                      .accepted = "a loader"});
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

#include "lab/recipes/batch_size.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/profile/allocation_log.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "demi/train/trainer.h"
#include "lab/data/data_sets.h"

namespace demi::recipes {
namespace {

constexpr double kShare = 0.8;  // of what is free
// What a heap takes in the end for the holes between its blocks: over what a trial takes, whose
// steps are few, and over the data, which are one block. Of steps, fashion-cnn took 1.18 times (12
// steps) to 1.36 times (and a test).
constexpr double kHeapOfSteps = 1.35, kHeapOfData = 1.1;
constexpr int64_t kTrialSteps = 4;

// One batch, made of the examples of a smaller one again and again.
class OneBatch : public data::Loader {
 public:
  OneBatch(const data::Batch& some, int64_t size) {
    const at::Tensor rows = at::arange(size, at::kLong).remainder(some.target.size(0));
    const at::Tensor there = rows.to(some.input.device());
    batch_ = {some.input.index_select(0, there), some.target.index_select(0, there), {}};
    if (some.lengths.defined()) batch_.lengths = some.lengths.index_select(0, rows);
    if (some.input.suggest_memory_format() == c10::MemoryFormat::ChannelsLast)
      batch_.input = batch_.input.contiguous(c10::MemoryFormat::ChannelsLast);
  }
  int64_t examples() const override { return batch_.target.size(0); }
  int64_t batches() const override { return 1; }
  data::Batch batch(int64_t, int64_t) const override { return batch_; }

 private:
  data::Batch batch_;
};

// What some training steps with a batch of that size take above the memory in use before the search
// (`resident_before`): bytes of tensors or, on a CPU, those of the process if they are more.
// Tensors beyond the limit throw, since a system that overcommits memory would end the process.
double trial(const Resolved& run, const Workload& workload, const data::Batch& some, int64_t size,
             int64_t limit, int64_t resident_before) {
  const c10::Device device = run.device;
  profile::quiet_down(device);
  const bool can_reset = profile::reset_peak_resident_memory();
  const int64_t before = profile::memory_use(device).current_bytes;
  {
    const profile::AllocationLog guard(device, limit);
    const train::Network network = workload.make_network(0);
    train::TrainerOptions options = trainer_options(run, 1);
    options.epochs = kTrialSteps;
    options.schedule = options.momentum_schedule = {};
    train::Trainer(network, make_optimizer(run, network), std::move(options))
        .fit(OneBatch(some, size));
  }
  const int64_t tensors = profile::memory_use(device).peak_bytes - before;
  if (!device.is_cpu()) return static_cast<double>(tensors);
  const profile::MemoryUse after = profile::resident_memory();
  const int64_t resident = can_reset ? after.peak_bytes : after.current_bytes;
  return static_cast<double>(std::max(tensors, resident - resident_before));
}

// A thread writes checkpoints from a copy of weights, moments and average.
double checkpoint_bytes(const Workload& workload) {
  constexpr double kTensors = 4;
  double bytes = 0;
  for (const at::Tensor& parameter : workload.make_network(0).module->parameters())
    bytes += kTensors * static_cast<double>(parameter.nbytes());
  return bytes;
}

// A training batch to try; of texts the one with the longest rows among the first fifty.
data::Batch widest_batch(const data::Loader& loader) {
  data::Batch widest = loader.batch(0, 0);
  const int64_t tried = widest.lengths.defined() ? std::min<int64_t>(loader.batches(), 50) : 1;
  for (int64_t i = 1; i < tried; ++i) {
    data::Batch batch = loader.batch(0, i);
    if (batch.input.size(1) > widest.input.size(1)) widest = std::move(batch);
  }
  return widest;
}

}  // namespace

int64_t synthetic_bytes(const Config& c) {
  if (c.data.empty()) return 0;
  const data::DataSet& set = data::data_set(c.data);
  if (set.layout != data::Layout::synthetic) return 0;
  return set.kind == data::Kind::rows ? 4 * (c.in + c.out) : 3 * c.image_size * c.image_size + 8;
}

// LibTorch has a type for CUDA and a text for the CPU.
bool is_out_of_memory(const std::exception& error) {
  const std::string_view text = error.what();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("can't allocate memory") != text.npos || text.find("out of memory") != text.npos;
}

int64_t largest_batch(const std::function<double(int64_t)>& peak, double room, int64_t most) {
  const int64_t small = std::min<int64_t>(8, most), large = std::min<int64_t>(32, most);
  const double at_small = peak(small), at_large = peak(large);
  if (at_small > room)
    throw TrainingError({.where = "train.find_batch_size",
                         .what = "a batch of " + std::to_string(small) + " does not fit in memory",
                         .seen = fmt::format("{:.0f} bytes of room", room),
                         .advice = "use a smaller model or another device"});
  if (small == large) return most;
  if (at_large > room) return small;
  struct Tried {
    int64_t size;
    double peak;
  };
  std::vector<Tried> fit{{small, at_small}, {large, at_large}};
  int64_t bound = most;
  while (true) {
    const Tried last = fit.back();
    // A line needs distance: a heap differs by megabytes from one trial to the next.
    const auto half = std::find_if(fit.rbegin(), fit.rend(),
                                   [&](const Tried& one) { return 2 * one.size <= last.size; });
    const Tried before = half == fit.rend() ? fit.front() : *half;
    const double of_one =
        std::max((last.peak - before.peak) / static_cast<double>(last.size - before.size), 1.0);
    const double predicted = static_cast<double>(last.size) + (room - last.peak) / of_one;
    const int64_t size =
        predicted < static_cast<double>(bound) ? static_cast<int64_t>(predicted) : bound;
    const int64_t next = std::min(size / 2, 8 * last.size);
    const bool is_far = 10 * next > 11 * last.size;
    if (!is_far) return bound < most ? last.size : std::min(size, 2 * last.size);
    if (const double needed = peak(next); needed <= room)
      fit.push_back({next, needed});
    else
      bound = next - 1;
  }
}

int64_t find_batch_size(const Resolved& run, const Workload& workload, const BatchSearch& search) {
  const Config& config = run.config;
  const c10::Device device = run.device;
  profile::count_cpu_memory();
  const auto share_of = [&](c10::Device place) {
    const bool is_told = search.free_bytes > 0 && place == device;
    return kShare * static_cast<double>(is_told ? search.free_bytes : profile::free_memory(place));
  };
  const data::Batch some = widest_batch(*workload.train);
  int64_t most = std::max<int64_t>(workload.train->examples(), 1);
  // Synthetic data are made for the batch size, so memory alone sets it; they lie in the memory of
  // the host and of the device as long as the run lasts. Those here are of a provisional size.
  const int64_t batches = config.dry_run ? 2 * batches_of_step(config) : config.batches;
  const double data_of_one = kHeapOfData * static_cast<double>(batches * synthetic_bytes(config));
  if (data_of_one > 0)
    most = static_cast<int64_t>(std::clamp<double>(share_of(c10::kCPU) / data_of_one, 1,
                                                   std::numeric_limits<int32_t>::max()));
  const double fixed = device.is_cpu() ? kHeapOfData * checkpoint_bytes(workload) : 0;
  const double heap = device.is_cpu() ? kHeapOfSteps : 1;
  profile::quiet_down(device);
  const double room = share_of(device);
  const int64_t resident = profile::resident_memory().current_bytes;
  // A trial that runs out of memory needs too much.
  const auto peak = [&](int64_t size) {
    const double data = static_cast<double>(size) * data_of_one + fixed;
    double needed = std::numeric_limits<double>::infinity();
    try {
      if (data < room)
        needed = data + heap * trial(run, workload, some, size,
                                     static_cast<int64_t>((room - data) / heap), resident);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
    }
    if (search.tried) search.tried({size, needed, room});
    return needed;
  };
  return largest_batch(peak, room, most);
}

}  // namespace demi::recipes

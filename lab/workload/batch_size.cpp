#include "lab/workload/batch_size.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/profile/allocation_log.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "demi/train/evaluate.h"
#include "demi/train/trainer.h"
#include "lab/data/data_sets.h"

namespace demi::workload {
namespace {

constexpr double kShare = 0.8;  // of what is free
// The factor of a heap's holes between its blocks, in the end: over the memory of a trial, whose
// steps are few, and over the data, which are one block. Measured on fashion-cnn: 1.18 times (12
// steps) to 1.36 times (and a test).
constexpr double kHeapOfSteps = 1.35, kHeapOfData = 1.1;
constexpr int64_t kTrialSteps = 4;
constexpr int64_t kRecordedSteps = 8;  // the first three to six run plainly

// A batch made of the examples of a smaller one again and again.
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

/// Work of a trial. Returns the bytes that its graphs hold beside the tensors of plain steps.
using Trial = std::function<int64_t()>;

// Memory that `work` takes above that in use before the search (`resident_before`): bytes of
// tensors or, on a CPU, those of the process if they are more; and those of its graphs. Tensors
// beyond the limit throw, since a system that overcommits memory would end the process.
double taken_by(const Trial& work, c10::Device device, int64_t limit, int64_t resident_before) {
  profile::quiet_down(device);
  const bool can_reset = profile::reset_peak_resident_memory();
  const int64_t before = profile::memory_use(device).current_bytes;
  int64_t graphs = 0;
  {
    const profile::AllocationLog guard(device, limit);
    graphs = work();
  }
  const int64_t tensors = graphs + profile::memory_use(device).peak_bytes - before;
  if (!device.is_cpu()) return static_cast<double>(tensors);
  const profile::MemoryUse after = profile::resident_memory();
  const int64_t resident = can_reset ? after.peak_bytes : after.current_bytes;
  return static_cast<double>(std::max(tensors, resident - resident_before));
}

// The last steps are recorded and replayed, if the run is. What its graphs have no memory for, does
// not fit either.
int64_t take_steps(const settings::Resolved& run, const Workload& workload, const data::Batch& some,
                   int64_t size) {
  const train::Network network = workload.make_network(0);
  train::TrainerOptions options = settings::trainer_options(run, 1);
  options.epochs = options.graph == loop::GraphMode::off ? kTrialSteps : kRecordedSteps;
  options.schedule = options.momentum_schedule = {};
  train::Trainer trainer(network, settings::make_optimizer(run, network), std::move(options));
  trainer.fit(OneBatch(some, size));
  const auto graphs = trainer.graph_counts();
  if (is_out_of_memory(std::runtime_error(graphs.refusal))) throw std::bad_alloc();
  return graphs.bytes;
}

// An evaluation of one batch as the test has them.
void evaluate_one(const settings::Resolved& run, const Workload& workload,
                  const data::Batch& batch) {
  train::evaluate(workload.make_network(0), OneBatch(batch, batch.target.size(0)),
                  {.precision = run.spec.precision,
                   .device = run.device,
                   .op_policy = run.op_policy,
                   .loss = run.loss});
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

// LibTorch has a type for CUDA and a text for the CPU.
bool is_out_of_memory(const std::exception& error) {
  const std::string_view text = error.what();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("can't allocate memory") != text.npos || text.find("out of memory") != text.npos;
}

namespace {

// The largest size between two trials, of which the smaller one fits: by the line through both,
// repeated until a tenth is left. Each trial is smaller than an earlier one.
int64_t between(const std::function<double(int64_t)>& peak, double room, int64_t fits,
                double at_fits, int64_t beyond, double at_beyond) {
  while (10 * beyond > 11 * fits + 10) {
    const double share = std::isfinite(at_beyond) ? (room - at_fits) / (at_beyond - at_fits) : 0.5;
    const int64_t size =
        fits + std::clamp<int64_t>(static_cast<int64_t>(share * static_cast<double>(beyond - fits)),
                                   std::max<int64_t>((beyond - fits) / 8, 1), beyond - fits - 1);
    const double needed = peak(size);
    if (needed <= room) {
      fits = size, at_fits = needed;
    } else {
      beyond = size, at_beyond = needed;
    }
  }
  return fits;
}

}  // namespace

int64_t largest_batch(const std::function<double(int64_t)>& peak, double room, int64_t most) {
  const int64_t small = std::min<int64_t>(8, most), large = std::min<int64_t>(32, most);
  const double at_small = peak(small), at_large = peak(large);
  if (at_small > room)
    throw TrainingError({.where = "workload.find_batch_size",
                         .what = "a batch of " + std::to_string(small) + " does not fit in memory",
                         .seen = fmt::format("{:.0f} bytes of room", room),
                         .advice = "use a smaller model or another device"});
  if (small == large) return most;
  if (at_large > room) return between(peak, room, small, at_small, large, at_large);
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

int64_t find_batch_size(const settings::Resolved& run, const Workload& workload,
                        const BatchSearch& search) {
  const settings::Config& config = run.config;
  const c10::Device device = run.device;
  profile::count_cpu_memory();
  const auto share_of = [&](c10::Device place) {
    const bool is_told = search.free_bytes > 0 && place == device;
    return kShare * static_cast<double>(is_told ? search.free_bytes : profile::free_memory(place));
  };
  const data::Batch some = widest_batch(*workload.train);
  int64_t most = std::max<int64_t>(workload.train->examples(), 1);
  // Synthetic data are made for the batch size, so memory alone sets it; they are held in the
  // memory of the host and of the device as long as the run lasts. The data here have a provisional
  // size.
  const int64_t batches = config.dry_run ? 2 * settings::batches_of_step(config) : config.batches;
  const double data_of_one =
      kHeapOfData * static_cast<double>(batches * settings::synthetic_bytes(config));
  if (data_of_one > 0)
    most = static_cast<int64_t>(std::clamp<double>(share_of(c10::kCPU) / data_of_one, 1,
                                                   std::numeric_limits<int32_t>::max()));
  const double fixed = device.is_cpu() ? kHeapOfData * checkpoint_bytes(workload) : 0;
  const double heap = device.is_cpu() ? kHeapOfSteps : 1;
  profile::quiet_down(device);
  const double room = share_of(device);
  const int64_t resident = profile::resident_memory().current_bytes;
  // Data and work; infinite where the work runs out of memory.
  const auto needed_by = [&](double data, const Trial& work) {
    try {
      if (data < room)
        return data +
               heap * taken_by(work, device, static_cast<int64_t>((room - data) / heap), resident);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
    }
    return std::numeric_limits<double>::infinity();
  };
  double evaluation = 0;
  if (workload.test && workload.test->batches() > 0) {
    const data::Batch tested = widest_batch(*workload.test);
    evaluation = needed_by(fixed, [&] {
      evaluate_one(run, workload, tested);
      return 0;
    });
    if (evaluation > room)
      throw TrainingError({.where = "workload.find_batch_size",
                           .what = "a test batch does not fit in memory",
                           .seen = fmt::format("--test-batch-size {}", config.test_batch_size),
                           .accepted = fmt::format("what takes {:.0f} bytes", room),
                           .advice = "choose a smaller --test-batch-size"});
  }
  const auto peak = [&](int64_t size) {
    const double data = static_cast<double>(size) * data_of_one + fixed;
    const double needed = std::max(
        evaluation, needed_by(data, [&] { return take_steps(run, workload, some, size); }));
    if (search.tried) search.tried({size, needed, room});
    return needed;
  };
  return largest_batch(peak, room, most);
}

}  // namespace demi::workload

#include "lab/bench/memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <utility>

#include "demi/core/error.h"
#include "demi/profile/allocation_log.h"
#include "demi/profile/memory.h"
#include "lab/bench/memory_step.h"
#include "lab/models/registry.h"
#include "lab/recipes/compare.h"
#include "lab/settings/resolved.h"
#include "lab/workload/batch_size.h"

namespace demi::bench {
namespace {

constexpr const char* kMemoryBench = "bench.memory";
constexpr int64_t kExamples = 32;   // from which is predicted, at most; and from twice that
constexpr double kFreeShare = 0.8;  // of what is free
constexpr int64_t kTokens = 256;

data::Kind kind_of(const settings::Config& config) {
  return models::find_model(config.model).reads;
}

// The pictures that the model is made for; for a model of any pictures those that the config names.
models::PictureShape pictures_of(const settings::Config& config) {
  return models::find_model(config.model)
      .pictures.value_or(
          models::PictureShape{.size = config.image_size, .classes = config.classes});
}

int64_t bound_of(c10::Device device) {
  profile::release_unused_memory(device);  // memory that earlier work holds counts as used
  return static_cast<int64_t>(kFreeShare * static_cast<double>(profile::free_memory(device)));
}

std::string in_mb(int64_t bytes) { return fmt::format("{:.1f} MB", 1e-6 * bytes); }

void check_sizes(const MemoryBenchOptions& options, const std::vector<int64_t>& input,
                 const std::vector<int64_t>& batch_sizes, c10::Device device) {
  const auto refuse_sizes = [](std::string_view what, const std::vector<int64_t>& seen,
                               const std::string& accepted) {
    refuse({.where = kMemoryBench,
            .what = what,
            .seen = fmt::format("{}", fmt::join(seen, ",")),
            .accepted = accepted});
  };
  const std::vector<int64_t> like = input_of(options.config);
  const std::string shapes =
      fmt::format("{} numbers of 1 or more, such as {}", like.size(), fmt::join(like, ","));
  if (input.size() != like.size())
    refuse_sizes("the model " + options.config.model + " takes an input of another shape", input,
                 shapes);
  const auto too_small = [](const std::vector<int64_t>& sizes) {
    return std::ranges::any_of(sizes, [](int64_t size) { return size < 1; });
  };
  if (too_small(input)) refuse_sizes("a size of the input is below 1", input, shapes);
  if (too_small(batch_sizes)) refuse_sizes("a batch size is below 1", batch_sizes, "1 or more");
  if (options.vocabulary < 1 || options.classes < 0)
    refuse_sizes("a size is below 1", {options.vocabulary, options.classes}, "1 or more");
  if (options.whole_logits && kind_of(options.config) != data::Kind::tokens)
    refuse({.where = kMemoryBench,
            .what = "this network has no loss of its own to be left out by whole_logits",
            .seen = options.config.model,
            .accepted = "gpt"});
  if (options.forward && options.whole_logits)
    refuse({.where = kMemoryBench,
            .what = "a forward pass computes no loss that whole_logits could change",
            .accepted = "one of the two"});
  double elements = 1;
  for (std::size_t i = 1; i < input.size(); ++i) elements *= static_cast<double>(input[i]);
  const int64_t most = bound_of(device) / static_cast<int64_t>(sizeof(float));
  if (elements > static_cast<double>(most))
    refuse_sizes("the input is beyond the free memory", input,
                 fmt::format("at most {} numbers an example here", most));
  if (input.size() == 4 && input[2] != input[3])
    refuse_sizes("the pictures are not square", input, shapes);
}

int64_t classes_of(const MemoryBenchOptions& options) {
  if (options.classes > 0) return options.classes;
  if (kind_of(options.config) == data::Kind::texts) return 2;
  return pictures_of(options.config).classes;
}

MemoryWork work_of(const MemoryBenchOptions& options, const settings::RunSpec& run,
                   const std::vector<int64_t>& input, c10::Device device) {
  settings::Config config = options.config;
  workload::DataShape shape{.classes = classes_of(options), .vocabulary = options.vocabulary};
  switch (kind_of(config)) {
    case data::Kind::rows:
      if (config.out == config.in) config.out = input[1];
      config.in = input[1];
      break;
    case data::Kind::pictures:
      shape.channels = input[1];
      shape.size = input[2];
      break;
    case data::Kind::tokens:
      config.context = input[1];
      break;
    case data::Kind::texts:
      if (shape.classes > 2) config.loss = "cross-entropy";
      break;
  }
  return {.run = settings::resolve(config, run, device),
          .shape = shape,
          .example = {input.begin() + 1, input.end()},
          .forward = options.forward,
          .whole_logits = options.whole_logits};
}

std::vector<settings::RunSpec> runs_of(const MemoryBenchOptions& options, c10::Device device) {
  std::vector<settings::RunSpec> runs = recipes::default_runs(device);
  if (options.runs.empty())
    runs.insert(runs.begin() + 1, settings::parse_run(runs.back().label + "-true"));
  else
    runs.resize(1);  // fp32
  for (const settings::RunSpec& run : options.runs)
    if (run.label != "fp32") runs.push_back(run);
  return runs;
}

// The predicted memory of a run by its number of examples.
class Prediction {
 public:
  Prediction(const MemoryWork& work, std::pair<int64_t, int64_t> from, int64_t limit)
      : small_(from.first),
        large_(from.second),
        of_small_(measure_memory(work, small_, limit).trace),
        of_large_(measure_memory(work, large_, limit).trace) {}

  MemoryByKind at_peak(int64_t batch_size) const {
    return memory_at_peak(extrapolated(of_small_, small_, of_large_, large_, batch_size));
  }

  /// The most examples that are predicted to fit; 0: not one.
  int64_t most(int64_t bound) const {
    int64_t fits = 0, beyond = std::numeric_limits<int32_t>::max();
    while (beyond - fits > 1) {
      const int64_t middle = fits + (beyond - fits) / 2;
      (at_peak(middle).total() <= bound ? fits : beyond) = middle;
    }
    return fits;
  }

 private:
  int64_t small_, large_;
  MemoryTrace of_small_, of_large_;
};

// Two batches, never the batch itself: powers of two below it, as 16-bit products round their rows
// up to 16, 32 or 64; of small ones the next two above.
std::pair<int64_t, int64_t> predicted_from(int64_t batch_size) {
  if (batch_size < 8) return {batch_size + 1, batch_size + 2};
  const auto half = static_cast<uint64_t>((batch_size - 1) / 2);
  const auto small = std::min(static_cast<int64_t>(std::bit_floor(half)), kExamples);
  return {small, 2 * small};
}

// The predictions of one run by the batches from which they are made.
class Predictions {
 public:
  explicit Predictions(const MemoryWork& work) : work_(work) {}

  const Prediction& of(int64_t batch_size) {
    const auto from = predicted_from(batch_size);
    const auto found = known_.find(from);
    if (found != known_.end()) return found->second;
    return known_.emplace(from, Prediction(work_, from, bound_of(work_.run.device))).first->second;
  }

 private:
  const MemoryWork& work_;
  std::map<std::pair<int64_t, int64_t>, Prediction> known_;
};

MemoryRow measure(const MemoryWork& work, const Prediction& prediction, int64_t batch_size) {
  const int64_t bound = bound_of(work.run.device);
  MemoryRow row{.precision = work.run.spec.label,
                .batch_size = batch_size,
                .predicted = prediction.at_peak(batch_size)};
  row.predicted_bytes = row.predicted.total();
  if (row.predicted_bytes > bound)
    refuse({.where = kMemoryBench,
            .what = fmt::format("a batch of {} in {} is beyond the free memory", batch_size,
                                work.run.spec.label),
            .seen = "predicted " + in_mb(row.predicted_bytes) + ", free to use " + in_mb(bound),
            .accepted = fmt::format("batch sizes from 1 to {} here", prediction.most(bound))});
  const MemoryMeasurement measured = measure_memory(work, batch_size, bound);
  row.peak = memory_at_peak(measured.trace);
  row.current = memory_at(measured.trace, measured.trace.end);
  row.peak_bytes = measured.peak_bytes;
  row.reserved_bytes = measured.reserved_bytes;
  return row;
}

int64_t parameters_of(const MemoryWork& work) {
  const c10::Device device = work.run.device;
  profile::count_cpu_memory();
  const profile::AllocationLog within_the_bound(device, bound_of(device));
  return models::parameter_count(
      *workload::make_network(work.run.config, work.shape, /*seed=*/0, device).module);
}

void measure_runs(MemoryBenchResult& result, const MemoryBenchOptions& options,
                  const std::vector<int64_t>& batch_sizes, c10::Device device) {
  std::vector<std::vector<MemoryRow>> by_run;
  const std::vector<settings::RunSpec> runs = runs_of(options, device);
  Parts parts(options.on_part, 2 * runs.size() * batch_sizes.size());
  for (const settings::RunSpec& run : runs) {
    const MemoryWork work = work_of(options, run, result.input, device);
    if (by_run.empty()) result.parameters = parameters_of(work);
    Predictions predictions(work);
    auto& rows = by_run.emplace_back();
    for (const int64_t size : batch_sizes) {
      parts.begin(
          fmt::format("{} with a batch of {}: other batches, to predict from", run.label, size));
      const Prediction& prediction = predictions.of(size);
      parts.begin(fmt::format("{} with a batch of {}", run.label, size));
      rows.push_back(measure(work, prediction, size));
    }
  }
  for (std::size_t i = 0; i < batch_sizes.size(); ++i)
    for (auto& rows : by_run) {
      rows[i].reduction = 1 - static_cast<double>(rows[i].peak_bytes) /
                                  static_cast<double>(by_run.front()[i].peak_bytes);
      result.rows.push_back(rows[i]);
    }
}

}  // namespace

std::vector<int64_t> input_of(const settings::Config& config) {
  const int64_t batch = config.batch_size;
  switch (kind_of(config)) {
    case data::Kind::rows:
      return {batch, config.in};
    case data::Kind::tokens:
      return {batch, config.context};
    case data::Kind::texts:
      return {batch, config.max_length > 0 ? config.max_length : kTokens};
    case data::Kind::pictures:
      break;
  }
  const models::PictureShape pictures = pictures_of(config);
  return {batch, pictures.channels, pictures.size, pictures.size};
}

MemoryBenchResult bench_memory(const MemoryBenchOptions& options, c10::Device device) {
  MemoryBenchResult result{
      .machine = recipes::machine(device),
      .input = options.input.empty() ? input_of(options.config) : options.input};
  std::vector<int64_t> sizes = options.batch_sizes;
  if (sizes.empty() && !result.input.empty()) sizes = {result.input.front()};
  check_sizes(options, result.input, sizes, device);
  try {
    measure_runs(result, options, sizes, device);
  } catch (const std::exception& error) {
    if (!workload::is_out_of_memory(error)) throw;
    refuse({.where = kMemoryBench,
            .what = "the work is beyond the free memory",
            .seen = fmt::format("input {}", fmt::join(result.input, ",")),
            .accepted = "what needs at most " + in_mb(bound_of(device)),
            .advice = "choose a smaller input or model"});
  }
  return result;
}

}  // namespace demi::bench

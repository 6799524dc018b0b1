#include "lab/bench/recipe.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "demi/core/error.h"
#include "demi/train/trainer.h"
#include "lab/bench/timing.h"
#include "lab/models/registry.h"
#include "lab/profiler/recording.h"
#include "lab/profiler/summary.h"
#include "lab/recipes/compare.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::bench {
namespace {

constexpr double kFirstLoss = 0.02, kMeanLoss = 0.1;  // accepted relative differences to FP32

using Clock = std::chrono::steady_clock;

// The first batches of a training set, whose order begins anew where it ends. A smaller one at an
// epoch's end is left out: steps of another size have another time. Notes when the host asks for
// the first batch of a step.
class Stretch : public data::Loader {
 public:
  Stretch(const data::Loader& all, int64_t batch_size, int64_t batches, int64_t of_step)
      : of_step_(of_step),
        all_(all),
        whole_(std::max<int64_t>(all.examples() / batch_size, 1)),
        batch_size_(std::min(batch_size, all.examples())),
        batches_(batches) {}
  int64_t examples() const override { return batches_ * batch_size_; }
  int64_t batches() const override { return batches_; }
  data::Batch batch(int64_t, int64_t position) const override {
    note(position);
    return all_.batch(position / whole_, position % whole_);
  }
  at::Tensor choice(int64_t, int64_t position) const override {
    note(position);
    return all_.choice(position / whole_, position % whole_);
  }
  data::Batch chosen(const at::Tensor& choice) const override { return all_.chosen(choice); }
  // When the steps began since the last call.
  std::vector<Clock::time_point> take_begun() const { return std::exchange(begun_, {}); }

 private:
  // A batch whose choice is of no use is asked for as well.
  void note(int64_t position) const {
    if (position % of_step_ == 0 && std::exchange(noted_, position) != position)
      begun_.push_back(Clock::now());
  }

  mutable std::vector<Clock::time_point> begun_;
  mutable int64_t noted_ = -1;
  int64_t of_step_;
  const data::Loader& all_;
  int64_t whole_, batch_size_, batches_;
};

// A precision's network in training, a few steps at a time. They are one fit, so that a step that
// was recorded in a CUDA graph is replayed in all rounds.
class Runner {
 public:
  /// `steps`: of the whole measurement. `read_every`: of a round.
  Runner(settings::Resolved run, const workload::Workload& workload, int64_t steps,
         int64_t read_every)
      : run_(std::move(run)),
        network_(network_of(run_, workload)),
        trainer_(network_, settings::make_optimizer(run_, network_),
                 options_of(run_, *workload.train, steps, read_every)),
        stretch_(*workload.train, run_.config.batch_size,
                 steps * settings::batches_of_step(run_.config),
                 settings::batches_of_step(run_.config)),
        parts_(trainer_, stretch_) {}

  void train(int64_t steps) {
    torch::manual_seed(static_cast<uint64_t>(run_.config.seed + steps_));
    stretch_.take_begun();
    parts_.advance(steps);
    steps_ += steps;
  }
  // Microseconds between the beginnings of the last steps, which the host does not wait between.
  std::vector<double> host_us() const {
    const std::vector<Clock::time_point> begun = stretch_.take_begun();
    std::vector<double> all;
    for (std::size_t i = 1; i < begun.size(); ++i)
      all.push_back(std::chrono::duration<double, std::micro>(begun[i] - begun[i - 1]).count());
    return all;
  }
  // The history of the steps that were read.
  const train::History& history() const { return parts_.history(); }
  // The next round has no steps to read but its own.
  void read() { parts_.checkpoint(); }

  const std::string& label() const { return run_.spec.label; }
  const train::Network& network() const { return network_; }

 private:
  static train::Network network_of(const settings::Resolved& run,
                                   const workload::Workload& workload) {
    train::Network network = workload.make_network(static_cast<uint64_t>(run.config.seed));
    settings::apply_policy(run, network);
    return network;
  }
  // The schedule is made for all steps, where an epoch has fewer.
  static train::TrainerOptions options_of(const settings::Resolved& run, const data::Loader& all,
                                          int64_t steps, int64_t read_every) {
    train::TrainerOptions options = settings::trainer_options(
        run, std::max(all.batches(), steps * settings::batches_of_step(run.config)));
    options.epochs = 1;
    options.max_steps = 0;
    options.give_up_after = 0;  // check_losses decides that
    options.read_every = read_every;
    return options;
  }

  const settings::Resolved run_;
  train::Network network_;
  train::Trainer trainer_;
  Stretch stretch_;
  train::Trainer::Parts parts_;
  int64_t steps_ = 0;
};

std::vector<double> losses_of(const train::History& history) {
  std::vector<double> losses;
  for (const train::StepMetrics& step : history.steps) losses.push_back(step.loss);
  return losses;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

[[noreturn]] void refuse_run(const std::string& run, const std::string& seen,
                             const std::string& accepted) {
  throw TrainingError(
      {.where = "bench.recipe",
       .what = "the run " + run + " does not train as it should, so it is not timed",
       .seen = seen,
       .accepted = accepted,
       .advice = "`demi compare` shows the curves of both"});
}

void check(const RecipeBenchOptions& options) {
  if (options.config.batch_size == 0)
    refuse({.where = "bench.recipe",
            .what = "the batch size must be the same for all runs",
            .seen = "auto",
            .advice = "name one: --batch-size 512"});
  if (options.warmup >= 2 && options.steps >= 1 && options.rounds >= 1) return;
  refuse({.where = "bench.recipe",
          .what = "an option is out of range",
          .seen = fmt::format("warmup {}, steps {}, rounds {}", options.warmup, options.steps,
                              options.rounds),
          .accepted = "2 or more steps of warm-up, 1 or more of the others"});
}

std::vector<settings::RunSpec> runs_of(const RecipeBenchOptions& options, c10::Device device) {
  std::vector<settings::RunSpec> runs = recipes::default_runs(device);
  if (!options.runs.empty()) runs.resize(1);  // fp32
  for (const settings::RunSpec& run : options.runs)
    if (run.label != "fp32") runs.push_back(run);
  if (runs.size() > 1) return runs;
  refuse({.where = "bench.recipe",
          .what = "there is no run to compare with fp32",
          .seen = "fp32",
          .accepted = "such as bf16 or fp16"});
}

RecipeTiming timing_of(const Runner& runner, const Times& ms, double loss) {
  return {.precision = runner.label(),
          .ms = ms.median(),
          .min_ms = ms.least(),
          .max_ms = ms.most(),
          .loss = loss,
          .skipped_steps = runner.history().skipped_steps};
}

// Its profiler's records of as many steps as a round has. Names in `missing` what there is none of.
std::optional<DeviceWork> record(Runner& runner, c10::Device device, int steps, double ms,
                                 std::vector<std::string>& missing) {
  const auto miss = [&](const std::string& what) {
    if (std::ranges::find(missing, what) == missing.end()) missing.push_back(what);
  };
  try {
    profiler::Recording recording(device);
    runner.train(steps);
    const profiler::Summary summary = profiler::summarise(recording.finish(), steps);
    for (const std::string& what : recording.missing()) miss(what);
    if (!summary.is_device) return std::nullopt;
    return DeviceWork{.kernels = summary.kernels,
                      .launches = summary.launches,
                      .busy_ms = summary.busy_ms,
                      .idle_share = std::max(0.0, 1 - summary.busy_ms / ms)};
  } catch (const DeviceError& none) {
    miss(none.what());
    return std::nullopt;
  }
}

}  // namespace

void check_losses(const std::string& run, const std::vector<double>& fp32,
                  const std::vector<double>& losses) {
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (!std::isfinite(losses[i]))
      refuse_run(
          run, fmt::format("a loss of {} in step {}", std::isnan(losses[i]) ? "NaN" : "Inf", i + 1),
          "a finite loss");
  const auto require = [&](const char* which, double seen, double reference, double tolerance) {
    if (std::fabs(seen - reference) <= tolerance * std::fabs(reference)) return;
    refuse_run(run, fmt::format("{} loss {:.6g}", which, seen),
               fmt::format("{:.6g} of FP32, within {:g} %", reference, 100 * tolerance));
  };
  require("first", losses.front(), fp32.front(), kFirstLoss);
  require("mean", mean(losses), mean(fp32), kMeanLoss);
}

RecipeBenchResult bench_recipe(const RecipeBenchOptions& options, c10::Device device) {
  check(options);
  const workload::Workload workload = workload::load_workload(options.config, device);
  if (options.before) options.before(workload);
  std::vector<std::unique_ptr<Runner>> runners;
  const bool records = options.records && !device.is_cpu();
  const int rounds = options.rounds + (records ? 1 : 0);
  for (const settings::RunSpec& run : runs_of(options, device))
    runners.push_back(std::make_unique<Runner>(settings::resolve(options.config, run, device),
                                               workload, options.warmup + rounds * options.steps,
                                               options.steps));

  Parts parts(options.on_part, runners.size() * (1 + static_cast<std::size_t>(options.rounds)));
  std::vector<std::vector<double>> warmup;
  for (const auto& runner : runners) {
    parts.begin("warm-up of " + runner->label());
    runner->train(options.warmup);
    runner->read();
    warmup.push_back(losses_of(runner->history()));
    check_losses(runner->label(), warmup.front(), warmup.back());
  }
  std::vector<Times> ms(runners.size()), host_us(runners.size());
  for (int round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < runners.size(); ++i) {
      parts.begin(
          fmt::format("round {} of {}, {}", round + 1, options.rounds, runners[i]->label()));
      ms[i].add(milliseconds(device, [&] { runners[i]->train(options.steps); }) / options.steps);
      for (const double us : runners[i]->host_us()) host_us[i].add(us);
    }

  RecipeBenchResult result{
      .machine = recipes::machine(device),
      .parameters = models::parameter_count(*runners.front()->network().module),
      .batch_size = options.config.batch_size};
  for (std::size_t i = 0; i < runners.size(); ++i) {
    result.runs.push_back(timing_of(*runners[i], ms[i], mean(warmup[i])));
    RecipeTiming& run = result.runs.back();
    run.speedup = result.runs.front().ms / run.ms;
    if (device.is_cpu()) continue;
    if (!host_us[i].empty()) run.host_us = host_us[i].least();
    if (records) run.of_device = record(*runners[i], device, options.steps, run.ms, result.missing);
  }
  return result;
}

}  // namespace demi::bench

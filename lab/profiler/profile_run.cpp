#include "lab/profiler/profile_run.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "demi/core/error.h"
#include "demi/data/loader.h"
#include "demi/profile/phase_timer.h"
#include "demi/train/trainer.h"
#include "lab/profiler/kernel_log.h"
#include "lab/settings/resolved.h"

namespace demi::profiler {
namespace {

void check(const ProfileOptions& options) {
  if (options.warmup >= 1 && options.steps >= 1) return;
  throw UsageError(
      {.where = "profiler.profile_run",
       .what = "a number of steps is out of range",
       .seen = fmt::format("{} of warm-up, {} recorded", options.warmup, options.steps),
       .accepted = "1 or more of each"});
}

constexpr std::int64_t kEver = 1'000'000'000;

// Joins epochs without an end, since the Trainer reads its device at an epoch's end. A smaller
// batch there is left out.
class Endless : public data::Loader {
 public:
  Endless(std::shared_ptr<const data::Loader> all, std::int64_t batch_size)
      : all_(std::move(all)),
        whole_(std::max<std::int64_t>(all_->examples() / batch_size, 1)),
        batch_size_(std::min(batch_size, all_->examples())) {}
  std::int64_t examples() const override { return kEver * batch_size_; }
  std::int64_t batches() const override { return kEver; }
  data::Batch batch(std::int64_t, std::int64_t position) const override {
    return all_->batch(position / whole_, position % whole_);
  }
  at::Tensor choice(std::int64_t, std::int64_t position) const override {
    return all_->choice(position / whole_, position % whole_);
  }
  data::Batch chosen(const at::Tensor& choice) const override { return all_->chosen(choice); }

 private:
  std::shared_ptr<const data::Loader> all_;
  std::int64_t whole_, batch_size_;
};

// A run in training, a few steps at a time.
class Steps {
 public:
  Steps(const ProfileOptions& options, const settings::Resolved& run,
        const workload::Workload& workload)
      : device_(run.device),
        loader_(workload.train, run.config.batch_size),
        network_(workload.make_network(static_cast<std::uint64_t>(run.config.seed))) {
    settings::apply_policy(run, network_);
    torch::manual_seed(static_cast<std::uint64_t>(run.config.seed));
    // A schedule is made for the epoch, or for all steps here if it has fewer.
    const std::int64_t all =
        (options.warmup + 3 * options.steps + 1) * settings::batches_of_step(run.config);
    train::TrainerOptions trainer =
        settings::trainer_options(run, std::max(workload.train->batches(), all));
    trainer.optimizers = {settings::make_optimizer(run, network_)};
    trainer.epochs = 1;
    trainer.max_steps = 0;
    trainer.read_every = kEver;  // a read of the device would be a wait that no step has
    trainer.give_up_after = 0;
    trainer_.emplace(network_, trainer);
    parts_ = std::make_unique<train::Trainer::Parts>(*trainer_, loader_);
  }

  void take(std::int64_t steps) { parts_->advance(steps); }
  std::int64_t graph_bytes() const { return trainer_->graph_counts().bytes; }

  // Milliseconds of each step; on a device their mean: a wait after each step would leave it idle,
  // while in training the host runs ahead.
  std::vector<double> timed(std::int64_t steps) {
    const std::int64_t together = device_.is_cpu() ? 1 : std::max<std::int64_t>(steps, 1);
    std::vector<double> ms;
    for (std::int64_t i = 0; i < steps; i += together) {
      const auto start = std::chrono::steady_clock::now();
      take(together);
      profile::synchronize(device_);
      const std::chrono::duration<double, std::milli> all =
          std::chrono::steady_clock::now() - start;
      ms.push_back(all.count() / static_cast<double>(together));
    }
    return ms;
  }

 private:
  c10::Device device_;
  Endless loader_;
  train::Network network_;
  std::optional<train::Trainer> trainer_;
  std::unique_ptr<train::Trainer::Parts> parts_;
};

// Minor page faults of the process so far.
double faults_so_far() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_minflt);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string demi_name(const std::string& onednn) {
  if (onednn == "f32") return "fp32";
  if (onednn == "f16") return "fp16";
  if (onednn == "f64") return "fp64";
  return onednn;
}

// Kernels of their own name first: a reorder only prepares another one's arguments.
void name_kernels(Summary& summary, std::vector<CpuKernel> kernels) {
  const auto is_reorder = [](const CpuKernel& one) { return one.name.starts_with("reorder"); };
  std::ranges::stable_sort(kernels, {}, is_reorder);
  for (OpUse& use : summary.ops)
    for (const CpuKernel& kernel : kernels) {
      const std::string dtype = demi_name(kernel.dtype);
      if (kernel.op == use.name && (dtype.empty() || dtype == use.dtype))
        if (std::ranges::find(use.kernels, kernel.name) == use.kernels.end())
          use.kernels.push_back(kernel.name);
    }
}

void read_kernel_names(Steps& steps, RunProfile& result) {
  KernelLog log;
  if (!log.is_open()) {
    result.missing.emplace_back("oneDNN writes no log here: the names of its kernels are missing.");
    return;
  }
  steps.take(1);
  name_kernels(result.summary, log.finish());
}

void record(const ProfileOptions& options, Steps& steps, RunProfile& result) {
  Recording recording(options.device);
  const double before = faults_so_far();
  result.recorded_ms = median(steps.timed(options.steps));
  result.recorded_faults = (faults_so_far() - before) / static_cast<double>(options.steps);
  result.summary = summarise(recording.finish(), options.steps);
  for (const std::string& missing : recording.missing()) result.missing.push_back(missing);
  if (options.trace.empty()) return;
  recording.save(options.trace);
  result.trace = options.trace;
}

// Measures, or names what a device or this LibTorch lacks, so that the rest is measured.
template <class Measure>
void unless_missing(RunProfile& result, const Measure& measure) {
  try {
    measure();
  } catch (const DeviceError& none) {
    result.missing.emplace_back(none.what());
  }
}

}  // namespace

RunProfile profile_run(const ProfileOptions& options, const settings::RunSpec& run,
                       const workload::Workload& workload) {
  check(options);
  RunProfile result{.precision = run.label, .summary = summarise({}, options.steps)};
  Steps steps(options, settings::resolve(options.config, run, options.device), workload);
  steps.take(options.warmup);
  // Half of them before and half after, so that another program's time does not all fall on one.
  const std::int64_t before = (options.steps + 1) / 2;
  const double faults = faults_so_far();
  std::vector<double> plain = steps.timed(before);
  result.plain_faults = (faults_so_far() - faults) / static_cast<double>(before);
  unless_missing(result, [&] { record(options, steps, result); });
  for (const double ms : steps.timed(options.steps - before)) plain.push_back(ms);
  result.plain_ms = median(std::move(plain));
  result.graph_bytes = steps.graph_bytes();
  if (options.device.is_cpu() && options.kernel_names) read_kernel_names(steps, result);
  if (options.ranges)
    unless_missing(result, [&] {
      const Ranges ranges(*options.ranges);
      steps.take(options.steps);
    });
  return result;
}

}  // namespace demi::profiler

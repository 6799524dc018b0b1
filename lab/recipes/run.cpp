#include "lab/recipes/run.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "demi/core/error.h"
#include "demi/profile/core_share.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "demi/train/evaluate.h"
#include "demi/train/trainer.h"
#include "lab/models/registry.h"
#include "lab/recipes/batch_size.h"
#include "lab/recipes/plan.h"
#include "lab/recipes/weights_file.h"

namespace demi::train {
namespace {

// The mean over whole epochs; of a run without a whole epoch, its time until it ended.
double mean_epoch_seconds(const History& history) {
  const std::size_t cut = history.stopped || history.failed ? 1 : 0;
  if (history.epochs.size() <= cut) return history.seconds();
  const std::size_t whole = history.epochs.size() - cut;
  double sum = 0;
  for (std::size_t i = 0; i < whole; ++i) sum += history.epochs[i].seconds;
  return sum / static_cast<double>(whole);
}

// Writes the weights to ship whenever validation gives a new best result.
class KeepBest : public Callback {
 public:
  KeepBest(Trainer& trainer, const Network& network, const Workload& workload, const Config& config,
           const Precision& precision, std::filesystem::path file)
      : trainer_(trainer),
        network_(network),
        workload_(workload),
        config_(config),
        precision_(precision),
        file_(std::move(file)) {}

  void on_epoch_end(const EpochRecord& epoch) override {
    if (!epoch.validation || (any_ && !epoch.validation->better_than(best_))) return;
    any_ = true;
    best_ = *epoch.validation;
    const Trainer::AverageInPlace average(trainer_);
    const Network spare = workload_.make_network(static_cast<uint64_t>(config_.seed));
    save_shipped_weights(*network_.module, *spare.module, precision_, file_, config_);
  }

 private:
  Trainer& trainer_;
  const Network& network_;
  const Workload& workload_;
  const Config& config_;
  const Precision& precision_;
  std::filesystem::path file_;
  Evaluation best_;
  bool any_ = false;
};

// The accuracy is that of the file, so the file is what is evaluated: written from one module, read
// into another.
void test_shipped(RunResult& result, const Config& config, const Workload& workload,
                  const Network& network, c10::Device device, const RunOptions& options) {
  const auto seed = static_cast<uint64_t>(config.seed);
  const Precision& precision = result.spec.precision;
  Network shipped = workload.make_network(seed);
  if (!options.folder.empty()) {
    const auto file = options.folder / (options.prefix + "model.safetensors");
    result.model_bytes =
        save_shipped_weights(*network.module, *shipped.module, precision, file, config);
    shipped = workload.make_network(seed + 1);
    load_shipped_weights(*shipped.module, precision, file);
  }
  if (!workload.test) return;
  EvaluateOptions test{.precision = precision, .device = device, .loss = parse_loss(config.loss)};
  test.per_class = options.per_class;
  if (result.top_k > 0) test.metrics = {top_k(result.top_k)};
  test.flush_subnormals = config.flush_subnormals;
  test.should_stop = options.should_stop;
  History& history = result.history;
  if (!options.folder.empty()) {
    const Evaluation low = evaluate(shipped, *workload.test, test);
    history.stopped = low.stopped;
    if (low.stopped) return;
    result.test_loss = low.loss;
    result.test_accuracy = low.accuracy;
    if (result.top_k > 0 && !low.metrics.empty())
      result.test_top_k_accuracy = low.metrics.front().second;
    result.class_accuracy = low.class_accuracy;
    if (!history.failed && !std::isfinite(low.loss))
      history.failed = "the test loss of the weights as shipped is NaN or Inf";
  }
  network.module->to(c10::kFloat);
  test.precision = parse_precision("fp32");
  const Evaluation exact = evaluate(network, *workload.test, test);
  history.stopped = exact.stopped;
  if (!exact.stopped) result.test_accuracy_fp32_eval = exact.accuracy;
}

// The weights and the state after the last step of a run that an exception ended. What cannot be
// saved either is not said: the exception is.
void keep_last(const Network& network, const torch::optim::Optimizer& optimizer,
               const History& history, const std::filesystem::path& file) {
  try {
    save_training_state(*network.module, optimizer, history, file);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
  }
}

// A remark on skipped steps of a run without a scaler, which nothing else reports.
std::string remark_on(const History& history) {
  const bool scaled =
      std::any_of(history.steps.begin(), history.steps.end(),
                  [](const StepMetrics& step) { return step.loss_scale.has_value(); });
  if (scaled || history.skipped_steps == 0) return "";
  return fmt::format(
      "{} of {} steps were skipped, with Inf or NaN among their gradients, though no loss is "
      "scaled",
      history.skipped_steps, history.steps.size());
}

// LibTorch's random numbers on the CPU and on the run's device, which the network's dropout draws.
class RandomNumbers {
 public:
  RandomNumbers(c10::Device device, uint64_t seed) {
    torch::manual_seed(seed);
    generators_ = {at::globalContext().defaultGenerator(c10::kCPU)};
    if (!device.is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(device));
    keep();
  }
  void keep() {
    states_.clear();
    for (at::Generator& generator : generators_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      states_.push_back(generator.get_state());
    }
  }
  void give_back() {
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      const std::lock_guard<std::mutex> lock(generators_[i].mutex());
      generators_[i].set_state(states_[i]);
    }
  }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// Runs `part`. Where memory runs out in it, `free_all` gives back what the run holds, and the error
// says which batch size would fit.
template <class Part, class Free>
auto or_say_what_fits(const Config& config, const RunSpec& spec, const Workload& workload,
                      c10::Device device, const Part& part, const Free& free_all) {
  std::string reason;
  try {
    return part();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    reason = error.what();
  }
  free_all();
  profile::quiet_down(device);
  const std::string fits = std::to_string(find_batch_size(config, spec, workload, device));
  throw TrainingError(
      {.where = "train.run",
       .what = "memory ran out in the run " + spec.label,
       .seen = "batch size " + config.batch_size + "; " + reason.substr(0, reason.find('\n')),
       .advice =
           "--batch-size " + fits + " fits in 80 % of what is free (--batch-size auto finds it)"});
}

}  // namespace

struct RunInParts::Work {
  Work(const Config& config_, const RunSpec& spec, const Workload& workload_, c10::Device device_,
       const RunOptions& options_, int64_t shared_bytes)
      : config(config_),
        workload(workload_),
        device(device_),
        options(options_),
        result{.spec = spec},
        memory(device, shared_bytes) {}

  void begin();
  bool advance(int64_t steps);
  void keep() const;
  RunResult finish();
  std::filesystem::path last() const {
    return options.folder / (options.prefix + "last.safetensors");
  }

  const Config config;
  const Workload& workload;
  const c10::Device device;
  const RunOptions options;
  RunResult result;
  Network network;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::optional<Trainer> trainer;
  std::optional<Trainer::Parts> parts;  // none where it was stopped before its first step
  std::optional<RandomNumbers> random;
  profile::TurnMemory memory;
  profile::CoreMeter cores;
};

void RunInParts::Work::begin() {
  profile::quiet_down(device);
  memory.begin();
  const auto seed = static_cast<uint64_t>(config.seed);
  network = workload.make_network(seed);
  result.parameters = models::parameter_count(*network.module);
  keep_in_fp32(config, network);
  random.emplace(device, seed);
  if (options.should_stop && options.should_stop()) {
    result.history.stopped = true;
    return;
  }
  TrainerOptions told = trainer_options(config, result.spec, workload.train->batches(), device);
  told.should_stop = options.should_stop;
  result.top_k = top_k_of(config.top_k, static_cast<int64_t>(workload.classes.size()));
  if (result.top_k > 0) told.metrics = {top_k(result.top_k)};
  optimizer = make_optimizer(config, network);
  trainer.emplace(network, optimizer, std::move(told));
  if (options.keep_best && workload.test) {
    trainer->add(
        std::make_shared<KeepBest>(*trainer, network, workload, config, result.spec.precision,
                                   options.folder / (options.prefix + "best-model.safetensors")));
  }
  for (const auto& callback : options.callbacks) trainer->add(callback);
  parts.emplace(*trainer, *workload.train, workload.test.get());
  memory.end();
}

bool RunInParts::Work::advance(int64_t steps) {
  if (!parts) return false;
  random->give_back();
  profile::reset_peak_resident_memory();
  memory.begin();
  cores.begin();
  bool goes_on = false;
  try {
    goes_on = parts->advance(steps);
  } catch (const std::exception&) {
    keep();
    throw;
  }
  cores.end();
  memory.end();
  random->keep();
  result.peak_resident_bytes =
      std::max(result.peak_resident_bytes, profile::resident_memory().peak_bytes);
  return goes_on;
}

void RunInParts::Work::keep() const {
  if (parts && !options.folder.empty() && !parts->history().steps.empty())
    train::keep_last(network, *optimizer, parts->history(), last());
}

RunResult RunInParts::Work::finish() {
  if (!parts) return std::move(result);
  result.history = parts->history();
  result.peak_bytes = memory.use().peak_bytes;
  result.cores_share = profile::cores_share(cores.readings());
  result.involuntary_switches = cores.readings().involuntary_switches;
  result.seconds = result.history.seconds();
  result.seconds_per_epoch = mean_epoch_seconds(result.history);
  result.skipped_steps = result.history.skipped_steps;
  result.remark = remark_on(result.history);
  if (!options.folder.empty())
    result.checkpoint_bytes =
        save_training_state(*network.module, *optimizer, result.history, last());
  if (result.history.stopped) return std::move(result);
  trainer->swap_average();  // what is shipped, and tested, is the average where there is one
  test_shipped(result, config, workload, network, device, options);
  return std::move(result);
}

RunInParts::RunInParts(const Config& config, const RunSpec& spec, const Workload& workload,
                       c10::Device device, const RunOptions& options, int64_t shared_bytes)
    : work_(std::make_unique<Work>(config, spec, workload, device, options, shared_bytes)) {
  or_say_what_fits(
      config, spec, workload, device, [&] { work_->begin(); }, [&] { work_.reset(); });
}

RunInParts::~RunInParts() = default;
RunInParts::RunInParts(RunInParts&&) noexcept = default;

bool RunInParts::advance(int64_t steps) {
  const Config config = work_->config;
  const RunSpec spec = work_->result.spec;
  return or_say_what_fits(
      config, spec, work_->workload, work_->device, [&] { return work_->advance(steps); },
      [&] { work_.reset(); });
}

void RunInParts::keep_last() const {
  if (work_) work_->keep();
}

RunResult RunInParts::finish() {
  const Config config = work_->config;
  const RunSpec spec = work_->result.spec;
  const Workload& workload = work_->workload;
  const c10::Device device = work_->device;
  RunResult result = or_say_what_fits(
      config, spec, workload, device, [&] { return work_->finish(); }, [&] { work_.reset(); });
  work_.reset();
  return result;
}

RunResult run(const Config& config, const RunSpec& spec, const Workload& workload,
              c10::Device device, const RunOptions& options) {
  profile::quiet_down(device);
  RunInParts all(config, spec, workload, device, options,
                 profile::memory_use(device).current_bytes);
  all.advance(std::numeric_limits<int64_t>::max());
  return all.finish();
}

}  // namespace demi::train

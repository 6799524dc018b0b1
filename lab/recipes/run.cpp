#include "lab/recipes/run.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string_view>
#include <utility>

#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/atomic_file.h"
#include "demi/core/error.h"
#include "demi/core/state_dict.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/monitor/origin_search.h"
#include "demi/profile/core_share.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "demi/train/evaluate.h"
#include "demi/train/trainer.h"
#include "lab/models/registry.h"
#include "lab/recipes/batch_size.h"
#include "lab/recipes/config_source.h"
#include "lab/recipes/plan.h"
#include "lab/recipes/weights_file.h"
#include "lab/recipes/what_if.h"

namespace demi::recipes {
namespace {

// The mean over whole epochs; of a run without a whole epoch, its time until it ended. An epoch is
// cut short by a signal, a failure or --steps.
double mean_epoch_seconds(const train::History& history, int64_t examples) {
  double sum = 0, whole = 0;
  for (const train::EpochRecord& epoch : history.epochs) {
    if (epoch.examples < examples) continue;
    sum += epoch.seconds;
    ++whole;
  }
  return whole > 0 ? sum / whole : history.seconds();
}

bool is_first(const RunOptions& options) { return !options.group || options.group->rank() == 0; }

// Whether any rank says so.
bool any_rank(const RunOptions& options, bool own) {
  if (!options.group || options.group->world_size() == 1) return own;
  const at::Tensor flag = at::full({1}, own ? 1 : 0, at::kInt);
  options.group->all_reduce(flag, distributed::Reduction::kMax);
  return flag.item<int>() > 0;
}

bool is_stopped(const RunOptions& options) {
  return any_rank(options, options.should_stop && options.should_stop());
}

// The accuracy is that of the file, so the file is what is evaluated: written from one module, read
// into another.
void test_shipped(RunResult& result, const Config& config, const Workload& workload,
                  const train::Network& network, c10::Device device, const RunOptions& options) {
  const auto seed = static_cast<uint64_t>(config.seed);
  const train::Precision& precision = result.spec.precision;
  train::Network shipped = workload.make_network(seed);
  const bool ships = any_rank(options, !options.folder.empty());
  if (!options.folder.empty()) {
    const auto file = options.folder / (options.prefix + "model.safetensors");
    result.model_bytes =
        save_shipped_weights(*network.module, *shipped.module, precision, file, config);
    shipped = workload.make_network(seed + 1);
    load_shipped_weights(*shipped.module, precision, file);
    if (precision.is_mixed()) keep_in_fp32(config, shipped);
  } else if (ships) {
    to_precision(*shipped.module, precision.shipped());
    if (precision.is_mixed()) keep_in_fp32(config, shipped);
  }
  // The other ranks get what rank 0 read.
  if (ships && options.group) distributed::broadcast_weights(*shipped.module, *options.group);
  if (!workload.test) return;
  train::EvaluateOptions test{.precision = precision,
                              .device = device,
                              .op_policy = op_policy_of(config),
                              .loss = loss_function_of(config)};
  test.per_class = options.per_class;
  if (result.top_k > 0) test.metrics = {train::top_k(result.top_k)};
  test.flush_subnormals = config.flush_subnormals;
  test.backends = backends_of(config);
  test.should_stop = options.should_stop;
  test.group = options.group.get();
  train::History& history = result.history;
  if (ships) {
    const train::Evaluation low = evaluate(shipped, *workload.test, test);
    history.stopped = low.stopped;
    if (low.stopped) return;
    result.test_loss = low.loss;
    result.test_accuracy = low.accuracy;
    if (!low.metrics.empty()) result.test_top_k_accuracy = low.metrics.front().second;
    result.class_accuracy = low.class_accuracy;
    if (!history.failed && !std::isfinite(low.loss))
      history.failed = "the test loss of the weights as shipped is NaN or Inf";
  }
  to_precision(*network.module, c10::kFloat);  // module->to() would convert integer buffers, too
  test.precision = train::parse_precision("fp32");
  const train::Evaluation exact = evaluate(network, *workload.test, test);
  history.stopped = exact.stopped;
  if (!exact.stopped) result.test_accuracy_fp32_eval = exact.accuracy;
}

// The library names its options, the program its own.
std::string in_words_of_the_program(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"TrainerOptions::autocast = false", "--no-autocast"},
      {"TrainerOptions::loss_scale off", "--no-scaler"}};
  for (const auto& [library, program] : kWords)
    if (const std::size_t at = text.find(library); at != text.npos)
      text.replace(at, library.size(), program);
  return text;
}

// A remark on skipped steps of a run without a scaler, which nothing else reports.
std::string remark_on(const train::History& history) {
  const bool scaled =
      std::any_of(history.steps.begin(), history.steps.end(),
                  [](const train::StepMetrics& step) { return step.loss_scale.has_value(); });
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

// What was measured of a run while it trained. A checkpoint holds it, since a run that goes on has
// only a part of its training before it.
struct Measured {
  int64_t peak_bytes = 0, peak_resident_bytes = 0;
  profile::CoreReadings cores;
};

constexpr const char* kMeasured = "measured";   // the part of a checkpoint's numbers
constexpr const char* kLabels = "demi.labels";  // of its texts: Workload::labels

StateDict numbers_of(const Measured& measured) {
  const profile::CoreReadings& cores = measured.cores;
  StateDict numbers{{"peak_bytes", static_cast<double>(measured.peak_bytes)},
                    {"peak_resident_bytes", static_cast<double>(measured.peak_resident_bytes)},
                    {"wall_seconds", cores.wall_seconds},
                    {"cpu_seconds", cores.cpu_seconds},
                    {"stolen_seconds", cores.stolen_seconds},
                    {"cores", cores.cores},
                    {"involuntary_switches", static_cast<double>(cores.involuntary_switches)}};
  if (cores.queued_seconds) numbers["queued_seconds"] = *cores.queued_seconds;
  return numbers;
}

Measured measured_of(const StateDict& numbers) {
  const auto number = [&](const char* name) { return state_value(numbers, name, "train.run"); };
  Measured measured{
      .peak_bytes = static_cast<int64_t>(number("peak_bytes")),
      .peak_resident_bytes = static_cast<int64_t>(number("peak_resident_bytes")),
      .cores = {.wall_seconds = number("wall_seconds"),
                .cpu_seconds = number("cpu_seconds"),
                .stolen_seconds = number("stolen_seconds"),
                .cores = number("cores"),
                .involuntary_switches = static_cast<int64_t>(number("involuntary_switches"))}};
  if (numbers.contains("queued_seconds")) measured.cores.queued_seconds = number("queued_seconds");
  return measured;
}

// A folder of checkpoints that a killed process made may be without one.
bool has_checkpoint(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) return false;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "last" || (name.starts_with("step-") && !name.ends_with(".tmp"))) return true;
  }
  return false;
}

// The name of the newest whole checkpoint; empty: there is none. Damaged ones that are newer are
// set aside.
std::string newest_whole_in(const RunOptions& options) {
  if (!has_checkpoint(options.checkpoints)) return "";
  std::vector<std::pair<std::filesystem::path, std::string>> damaged;
  const auto found = checkpoint::newest_whole(
      options.checkpoints, [&](const std::filesystem::path& path, const std::string& wrong) {
        damaged.emplace_back(path, wrong);
      });
  for (const auto& [path, wrong] : damaged) {
    const auto aside = checkpoint::set_aside(path);
    if (options.say)
      options.say(fmt::format("{} is damaged and is kept as {}; the run goes on from {} ({})",
                              path.filename().string(), aside.string(), found->filename().string(),
                              wrong));
  }
  return found ? found->filename().string() : "";
}

// Of a checkpoint's folder.
int64_t bytes_of(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

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
      : config(config_of(config_, spec)),
        workload(workload_),
        device(device_),
        options(options_),
        result{.spec = spec, .data_bytes = shared_bytes},
        memory(device, /*shared_bytes=*/0) {}

  void begin();
  train::TrainerOptions told();
  void go_on_from(const std::filesystem::path& checkpoint);
  std::filesystem::path checkpoint_to_go_on_from() const;
  bool advance(int64_t steps);
  Measured measured();
  void keep();
  void answer_what_if();
  RunResult finish();

  const Config config;
  const Workload& workload;
  const c10::Device device;
  const RunOptions options;
  RunResult result;
  train::Network network;
  std::optional<train::Trainer> trainer;
  std::optional<train::Trainer::Parts> parts;  // none where it was stopped before its first step
  std::optional<RandomNumbers> random;
  std::shared_ptr<monitor::WhatIf> what_if;  // none: it was not asked
  profile::TurnMemory memory;
  profile::CoreMeter cores;
  Measured before;  // of the run's training in other processes
  int64_t peak_resident_bytes = 0;
  bool measures = false;  // between begin() and end() of memory and cores
};

// What the trainer is told of checkpoints and signals, beside the plan.
train::TrainerOptions RunInParts::Work::told() {
  train::TrainerOptions told =
      trainer_options(config, result.spec, workload.train->batches(), device);
  told.should_stop = options.should_stop;
  told.group = options.group;
  told.shard_optimizer = config.shard_optimizer;
  if (options.save_requests) {
    told.should_save = [requests = options.save_requests, seen = 0]() mutable {
      const int now = requests();
      return std::exchange(seen, now) != now;
    };
  }
  if (options.checkpoints.empty()) return told;
  train::CheckpointOptions& checkpoints = told.checkpoints;
  checkpoints.folder = options.checkpoints;
  checkpoints.every = train::Every::parse(config.checkpoint_every);
  checkpoints.keep_last = config.keep_last;
  checkpoints.keep_best = options.keep_best && workload.test;
  checkpoints.in_background = options.save_in_background;
  checkpoints.text = {{"demi.config", to_json(config)}};
  if (workload.labels) checkpoints.text[kLabels] = std::to_string(*workload.labels);
  checkpoints.before_save = [this](checkpoint::Checkpoint& checkpoint) {
    checkpoint.numbers[kMeasured] = numbers_of(measured());
    if (options.before_save) options.before_save();
  };
  return told;
}

// The memory that reading takes is none of the training's.
void RunInParts::Work::go_on_from(const std::filesystem::path& checkpoint) {
  trainer->resume(checkpoint);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint);
  const auto found = manifest.numbers.find(kMeasured);
  if (found != manifest.numbers.end()) before = measured_of(found->second);
  if (!is_first(options) || !options.say) return;
  const auto labels = manifest.text.find(kLabels);
  if (workload.labels && labels != manifest.text.end() &&
      labels->second != std::to_string(*workload.labels))
    options.say(
        "the labels of the training data are not those that the run was begun with, in value or in "
        "order: its weights have learned the others");
  if (manifest.libtorch != TORCH_VERSION)
    options.say("the checkpoint was written with LibTorch " + manifest.libtorch + ", and this is " +
                TORCH_VERSION + ": what follows may round otherwise");
}

// Rank 0 looks for it: it alone may set damaged ones aside. Others may see its folder elsewhere.
std::filesystem::path RunInParts::Work::checkpoint_to_go_on_from() const {
  std::string name = is_first(options) ? newest_whole_in(options) : "";
  if (options.group && options.group->world_size() > 1)
    name = distributed::broadcast_text(name, 0, *options.group);
  return name.empty() ? std::filesystem::path() : options.checkpoints / name;
}

void RunInParts::Work::begin() {
  profile::quiet_down(device);
  memory.begin();
  const auto seed = static_cast<uint64_t>(config.seed);
  network = workload.make_network(seed);
  result.parameters = models::parameter_count(*network.module);
  keep_in_fp32(config, network);
  if (options.group && config.sync_batch_norm)
    distributed::synchronise_batch_norm(*network.module, *options.group);
  random.emplace(device, seed);
  if (is_stopped(options)) {
    result.history.stopped = true;
    return;
  }
  train::TrainerOptions trainer_told = told();
  result.top_k = train::top_k_of(config.top_k, static_cast<int64_t>(workload.classes.size()));
  if (result.top_k > 0) trainer_told.metrics = {train::top_k(result.top_k)};
  trainer.emplace(network, make_optimizer(config, network), std::move(trainer_told));
  for (const auto& callback : options.callbacks) trainer->add(callback);
  if (is_first(options) && !config.what_if.empty() && can_be_asked(result.spec.precision)) {
    what_if = std::make_shared<monitor::WhatIf>(what_if_options(config));
    trainer->add(what_if);
  }
  if (config.detect_anomaly)
    trainer->add(std::make_shared<monitor::OriginSearch>([this](const monitor::Origin& origin) {
      result.origins.push_back(origin);
      if (options.on_origin) options.on_origin(origin);
    }));
  if (is_first(options) && config.monitor > 0)
    trainer->add(
        std::make_shared<monitor::Monitor>(config.monitor, [this](const monitor::StepHealth& step) {
          result.health.push_back(step);
          if (options.on_health) options.on_health(step);
        }));
  memory.end();

  memory.begin();
  std::filesystem::path from = options.begin_from;
  if (options.resume) from = checkpoint_to_go_on_from();
  if (!from.empty()) go_on_from(from);
  parts.emplace(*trainer, *workload.train, workload.test.get());
  profile::reset_peak_memory(device);
  memory.end();
  random->keep();
  const bool goes_on = options.resume || !from.empty();
  if (goes_on && options.on_resume) options.on_resume(result.spec, parts->history());
}

bool RunInParts::Work::advance(int64_t steps) {
  if (!parts) return false;
  random->give_back();
  profile::reset_peak_resident_memory();
  memory.begin();
  cores.begin();
  measures = true;
  const bool goes_on = parts->advance(steps);
  measured();
  measures = false;
  random->keep();
  return goes_on;
}

// What 16 bits would do, and the file that a run without it needs.
void RunInParts::Work::answer_what_if() {
  if (!what_if) return;
  monitor::WhatIfResult asked = what_if->result();
  if (asked.batches == 0 && !asked.diverged) return;
  const monitor::WhatIfResult& found = result.what_if.emplace(std::move(asked));
  if (!options.folder.empty() && !found.cures.empty()) {
    result.what_if_policy =
        options.folder / fmt::format("{}op-policy-{}.txt", options.prefix, config.what_if);
    write_atomically(result.what_if_policy, found.policy_text(),
                     "free some space, or name another folder");
  }
  if (options.on_what_if) options.on_what_if(found);
}

// Until now, of the whole run. In the middle of a part it begins another one.
Measured RunInParts::Work::measured() {
  if (measures) {
    cores.end();
    memory.end();
    peak_resident_bytes = std::max(peak_resident_bytes, profile::resident_memory().peak_bytes);
    memory.begin();
    cores.begin();
  }
  Measured all{.peak_bytes = std::max(before.peak_bytes, memory.use().peak_bytes),
               .peak_resident_bytes = std::max(before.peak_resident_bytes, peak_resident_bytes),
               .cores = before.cores};
  all.cores += cores.readings();
  return all;
}

// What cannot be saved either is not said: the exception that ended the other run is. The other
// ranks, which would have to send their share of the state, may have no exception.
void RunInParts::Work::keep() {
  if (options.group && config.shard_optimizer) return;
  if (!parts || !is_first(options) || options.checkpoints.empty() || parts->history().steps.empty())
    return;
  try {
    checkpoint::Checkpoint state = parts->checkpoint();
    state.numbers[kMeasured] = numbers_of(measured());
    checkpoint::save(options.checkpoints, parts->history().steps.back().step, state,
                     {.keep_last = config.keep_last});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
  }
}

RunResult RunInParts::Work::finish() {
  if (!parts) return std::move(result);
  result.history = parts->history();
  if (result.history.failed)
    result.history.failed = in_words_of_the_program(*result.history.failed);
  const Measured all = measured();
  result.peak_bytes = all.peak_bytes;
  result.peak_resident_bytes = all.peak_resident_bytes;
  result.cores_share = profile::cores_share(all.cores);
  result.involuntary_switches = all.cores.involuntary_switches;
  result.seconds = result.history.seconds();
  result.seconds_per_epoch = mean_epoch_seconds(result.history, workload.train->all_examples());
  result.skipped_steps = result.history.skipped_steps;
  result.remark = remark_on(result.history);
  answer_what_if();
  if (is_first(options) && has_checkpoint(options.checkpoints))
    result.checkpoint_bytes = bytes_of(checkpoint::find(options.checkpoints));
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

void RunInParts::keep_last() {
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

void check_parts(const Config& config, std::span<const RunSpec> runs, const Workload& workload) {
  train::Network network;
  for (const RunSpec& run : runs) {
    const Config told = config_of(config, run);
    if (!config.scaler && (run.loss_scale.kind == train::LossScale::Kind::fixed ||
                           run.loss_scale.kind == train::LossScale::Kind::dynamic ||
                           run.loss_scale.kind == train::LossScale::Kind::statistics))
      throw UsageError({.where = "--no-scaler",
                        .what = "a loss scale is asked for, and none",
                        .seen = run.label,
                        .advice = "leave out one of them"});
    if (told.fp32_part.empty() && told.op_policy.empty()) continue;
    const bool is_16_bit =
        !run.precision.is_mixed() && at::isReducedFloatingType(run.precision.weights);
    if (is_16_bit)
      throw UsageError({.where = told.fp32_part.empty() ? "--op-policy" : "--fp32-part",
                        .what = "this is about the autocast region, and " + run.label +
                                " computes everything in 16 bits",
                        .seen = told.fp32_part.empty() ? told.op_policy : told.fp32_part,
                        .accepted = "a mixed precision (fp16, bf16), or one of FP32 or more"});
    if (!network.module) network = workload.make_network(static_cast<uint64_t>(config.seed));
    keep_in_fp32(told, network);
  }
}

RunResult run(const Config& config, const RunSpec& spec, const Workload& workload,
              c10::Device device, const RunOptions& options) {
  profile::quiet_down(device);
  RunInParts all(config, spec, workload, device, options,
                 profile::memory_use(device).current_bytes);
  all.advance(std::numeric_limits<int64_t>::max());
  return all.finish();
}

}  // namespace demi::recipes

#include "lab/recipes/job.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string_view>
#include <utility>

#include "demi/autocast/apply.h"
#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"
#include "demi/core/state_dict.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/monitor/origin_search.h"
#include "demi/profile/scoped_timer.h"
#include "demi/train/evaluate.h"
#include "lab/models/registry.h"
#include "lab/recipes/find_start.h"
#include "lab/recipes/resume.h"
#include "lab/recipes/run_record.h"
#include "lab/recipes/starting_weights.h"
#include "lab/recipes/what_if.h"
#include "lab/settings/config_source.h"
#include "lab/workload/batch_size.h"
#include "lab/workload/model_file.h"
#include "lab/workload/network_place.h"
#include "lab/workload/weights_file.h"

namespace demi::recipes {
namespace {

// The mean seconds over whole epochs; for a run without one, foreseen from the examples that it was
// trained on. An epoch is cut short by a signal, a failure or --steps.
double seconds_per_epoch(const train::History& history, int64_t examples) {
  double of_whole = 0, of_all = 0;
  int64_t whole = 0, seen = 0;
  for (const train::EpochRecord& epoch : history.epochs) {
    of_all += epoch.seconds;
    seen += epoch.examples;
    if (epoch.examples < examples) continue;
    of_whole += epoch.seconds;
    ++whole;
  }
  if (whole > 0) return of_whole / static_cast<double>(whole);
  if (seen == 0) return history.seconds();
  return of_all * static_cast<double>(examples) / static_cast<double>(seen);
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

// A remark on steps that were skipped for their norm, and on any others of a run without a scaler,
// which nothing else reports.
std::string remark_on(const train::History& history) {
  const bool scaled = std::ranges::any_of(
      history.steps, [](const train::StepMetrics& step) { return step.loss_scale.has_value(); });
  const auto for_norm = std::ranges::count_if(history.steps, &train::StepMetrics::skipped_for_norm);
  std::string text;
  if (for_norm > 0)
    text = fmt::format(
        "{} of {} steps were skipped, because the norm of their gradients was above "
        "--skip-norm-above",
        for_norm, history.steps.size());
  if (scaled || history.skipped_steps == for_norm) return text;
  if (!text.empty()) text += "; ";
  return text + fmt::format(
                    "{} of {} steps were skipped, with Inf or NaN among their gradients, though "
                    "no loss is scaled",
                    history.skipped_steps - for_norm, history.steps.size());
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
std::string newest_whole_in(const std::filesystem::path& checkpoints, RunObserver& observer) {
  if (!has_checkpoint(checkpoints)) return "";
  std::vector<std::pair<std::filesystem::path, std::string>> damaged;
  const auto found = checkpoint::newest_whole(
      checkpoints, [&](const std::filesystem::path& path, const std::string& wrong) {
        damaged.emplace_back(path, wrong);
      });
  for (const auto& [path, wrong] : damaged) {
    const auto aside = checkpoint::set_aside(path);
    observer.on_note(fmt::format("{} is damaged and is kept as {}; the run resumes from {} ({})",
                                 path.filename().string(), aside.string(),
                                 found->filename().string(), wrong));
  }
  return found ? found->filename().string() : "";
}

// The bytes of a checkpoint's folder.
int64_t bytes_of(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

RunObserver& nobody() {
  static RunObserver watches_nothing;
  return watches_nothing;
}

constexpr const char* kMeasured = "measured";   // the part of a checkpoint's numbers
constexpr const char* kLabels = "demi.labels";  // of its texts: Workload::labels

}  // namespace

// LibTorch's random numbers on the CPU and on the run's device, which the network's dropout draws.
class Job::RandomNumbers {
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

StateDict Job::numbers_of(const Measured& measured) {
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

Job::Measured Job::measured_of(const StateDict& numbers) {
  const auto number = [&](const char* name) { return state_value(numbers, name, "recipes.run"); };
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

void Job::say_what_fits(const std::exception& error) {
  if (!workload::is_out_of_memory(error)) return;
  const std::string reason = error.what();
  parts_.reset();
  trainer_.reset();
  random_.reset();
  what_if_.reset();
  network_ = {};
  profile::quiet_down(device_);
  int64_t fits = workload::find_batch_size(run_, workload_);
  const bool counts_tokens = config_.tokens_per_step > 0;  // of which batches are a divisor
  while (counts_tokens && fits > 1 &&
         config_.tokens_per_step % (fits * config_.context * config_.ranks) != 0)
    --fits;
  throw TrainingError(
      {.where = "recipes.run",
       .what = "memory ran out in the run " + run_.spec.label,
       .seen = fmt::format("batch size {}; {}", config_.batch_size,
                           reason.substr(0, reason.find('\n'))),
       .advice = fmt::format("--batch-size {} fits in 80 % of what is free{}", fits,
                             counts_tokens ? "" : " (--batch-size auto finds it)")});
}

Job::Job(settings::Resolved run, const workload::Workload& workload, JobOptions options,
         int64_t shared_bytes)
    : run_(std::move(run)),
      workload_(workload),
      options_(std::move(options)),
      observer_(options_.observer ? *options_.observer : nobody()),
      result_{.spec = run_.spec, .data_bytes = shared_bytes},
      memory_(device_, /*shared_bytes=*/0) {
  try {
    begin();
  } catch (const std::exception& error) {
    say_what_fits(error);
    throw;
  }
}

Job::~Job() = default;

// Whether `own` is true on any rank.
bool Job::any_rank(bool own) const {
  if (!options_.group || options_.group->world_size() == 1) return own;
  const at::Tensor flag = at::full({1}, own ? 1 : 0, at::kInt);
  options_.group->all_reduce(flag, distributed::Reduction::kMax);
  return flag.item<int>() > 0;
}

void Job::begin() {
  profile::quiet_down(device_);
  memory_.begin();
  const auto seed = static_cast<uint64_t>(config_.seed);
  network_ = workload_.make_network(seed);
  result_.parameters = models::parameter_count(*network_.module);
  settings::apply_policy(run_, network_);
  result_.recipe_layers = settings::layers_in_words(*network_.module);
  if (options_.group && config_.sync_batch_norm)
    distributed::synchronise_batch_norm(*network_.module, *options_.group);
  random_ = std::make_unique<RandomNumbers>(device_, seed);
  if (any_rank(observer_.should_stop())) {
    result_.history.stopped = true;
    return;
  }
  result_.top_k = workload::top_k_of(workload_, config_.top_k);
  const auto optimizer = settings::make_optimizer(run_, network_);
  trainer_.emplace(network_, optimizer, trainer_options());
  add_observers();
  memory_.end();

  memory_.begin();
  const std::filesystem::path from =
      options_.resume ? checkpoint_to_resume() : options_.resume_from;
  if (!from.empty()) resume(from);
  if (from.empty() && !config_.from.empty()) start(*optimizer);
  parts_.emplace(*trainer_, *workload_.train, workload_.test.get());
  if (!from.empty()) read_earlier(from);
  profile::reset_peak_memory(device_);
  memory_.end();
  random_->keep();
  const bool resumes = options_.resume || !from.empty();
  if (resumes) observer_.on_resume(run_.spec, parts_->history());
}

// The options of the resolved config, with metrics, checkpoints and signals.
train::TrainerOptions Job::trainer_options() {
  train::TrainerOptions trainer = settings::trainer_options(run_, workload_.train->batches());
  if (result_.top_k > 0) trainer.metrics = {train::top_k(result_.top_k)};
  trainer.should_stop = [this] { return observer_.should_stop(); };
  trainer.should_save = [this, seen = 0]() mutable {
    const int now = observer_.save_requests();
    return std::exchange(seen, now) != now;
  };
  trainer.group = options_.group;
  trainer.shard_optimizer = config_.shard_optimizer;
  if (options_.checkpoints.empty()) return trainer;
  train::CheckpointOptions& checkpoints = trainer.checkpoints;
  checkpoints.folder = options_.checkpoints;
  checkpoints.every = run_.checkpoint_every;
  checkpoints.keep_last = config_.keep_last;
  checkpoints.keep_every = train::Every::parse(config_.keep_every);
  checkpoints.keep_best = options_.keep_best && config_.keep_best > 0 && workload_.test;
  checkpoints.best_count = std::max<int64_t>(config_.keep_best, 1);
  checkpoints.in_background = options_.save_in_background;
  checkpoints.text = {{"demi.config", settings::to_json(config_)}};
  checkpoints.model_text = workload::model_texts(run_, workload_, /*is_average=*/false);
  if (workload_.labels) checkpoints.text[kLabels] = std::to_string(*workload_.labels);
  checkpoints.before_save = [this](checkpoint::Checkpoint& checkpoint) {
    observer_.before_save();
    add_numbers(checkpoint);
  };
  checkpoints.history_steps = options_.history_steps;
  return trainer;
}

void Job::add_observers() {
  for (const auto& callback : options_.callbacks) trainer_->add(callback);
  if (is_first() && !config_.what_if.empty() && can_be_asked(run_.spec.precision)) {
    what_if_.emplace(run_, workload_.train->batches());
    trainer_->add(what_if_->observer());
  }
  if (config_.detect_anomaly)
    trainer_->add(std::make_shared<monitor::OriginSearch>([this](const monitor::Origin& origin) {
      result_.origins.push_back(origin);
      observer_.on_origin(origin);
    }));
  if (is_first() && config_.monitor > 0)
    trainer_->add(std::make_shared<monitor::Monitor>(config_.monitor,
                                                     [this](const monitor::StepHealth& step) {
                                                       result_.health.push_back(step);
                                                       observer_.on_health(step);
                                                     }));
}

// Rank 0 looks for it: it alone may set damaged ones aside. Others may see its folder elsewhere.
std::filesystem::path Job::checkpoint_to_resume() const {
  std::string name = is_first() ? newest_whole_in(options_.checkpoints, observer_) : "";
  if (options_.group && options_.group->world_size() > 1)
    name = distributed::broadcast_text(name, 0, *options_.group);
  return name.empty() ? std::filesystem::path() : options_.checkpoints / name;
}

// The checkpoint or file to start from. Damaged ones stay: another run may hold their folder.
std::filesystem::path Job::saved_weights() const {
  if (!options_.start_from.empty()) return options_.start_from;
  const auto say = [this](const std::filesystem::path& damaged, const std::string& wrong) {
    observer_.on_note(damaged.string() + " is damaged and is passed over (" + wrong + ")");
  };
  std::string found = is_first() ? find_start(config_.from, say).string() : "";
  if (options_.group && options_.group->world_size() > 1)
    found = distributed::broadcast_text(found, 0, *options_.group);
  return found;
}

void Job::start(torch::optim::Optimizer& optimizer) {
  put(read_start(run_, workload_, *network_.module, saved_weights()), *network_.module, optimizer);
}

namespace {

// The settings of the run that saved it; none: it does not say.
std::optional<settings::Config> config_in(const checkpoint::Metadata& text,
                                          const std::string& source) {
  const auto found = text.find("demi.config");
  if (found == text.end()) return std::nullopt;
  settings::Config config;
  for (const settings::Assignment& a : settings::read_config_text(found->second, source))
    settings::set(config, a.name, a.text, a.source);
  return config;
}

bool scales_losses(const settings::Resolved& run) {
  const LossScale::Kind kind = run.spec.loss_scale.kind;
  if (!run.config.scaler || kind == LossScale::Kind::off) return false;
  return kind != LossScale::Kind::automatic || run.spec.precision.autocast == c10::kHalf;
}

}  // namespace

// Notes that the run resumes in another precision, or with another loss scale, and from which
// scale.
void Job::say_what_changes(const settings::Config& begun, bool keeps_scale) const {
  const std::string change = change_of_precision(begun, config_);
  if (change.empty() || !is_first()) return;
  const char* scale = !scales_losses(run_) ? "losses are not scaled"
                      : keeps_scale        ? "its loss scale is the checkpoint's"
                                           : "its loss scale begins anew";
  observer_.on_note("the run goes on with " + change + "; " + scale);
}

// Resumes the run. The memory of reading does not count as the training's.
void Job::resume(const std::filesystem::path& checkpoint) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint);
  if (run_.model->is_file)
    if (const auto model = workload::read_model_texts(checkpoint).description)
      workload::require_same_network(config_, model->identity, checkpoint.string());
  const std::optional<settings::Config> begun = config_in(manifest.text, checkpoint.string());
  const bool other_scale =
      begun && (begun->loss_scale != config_.loss_scale || begun->scaler != config_.scaler);
  if (other_scale) {
    checkpoint::Checkpoint mapped = checkpoint::map(checkpoint);
    mapped.numbers.erase("scaler");
    trainer_->resume(mapped);
  } else {
    trainer_->resume(checkpoint);
  }
  if (begun) say_what_changes(*begun, !other_scale && manifest.numbers.contains("scaler"));
  if (const auto found = manifest.numbers.find(kMeasured); found != manifest.numbers.end()) {
    before_ = measured_of(found->second);
    step_lines_ = StepLines::in_numbers(found->second);
  }
  if (!is_first()) return;
  const auto labels = manifest.text.find(kLabels);
  if (workload_.labels && labels != manifest.text.end() &&
      labels->second != std::to_string(*workload_.labels))
    observer_.on_note(
        "the labels of the training data are not those that the run was begun with, in value or in "
        "order: its weights have learned the others");
  if (manifest.libtorch != TORCH_VERSION)
    observer_.on_note("the checkpoint was written with LibTorch " + manifest.libtorch +
                      ", and this is " + TORCH_VERSION + ": what follows may round otherwise");
}

void Job::add_numbers(checkpoint::Checkpoint& checkpoint) {
  StateDict& numbers = checkpoint.numbers[kMeasured] = numbers_of(measured());
  if (options_.history_steps > 0) numbers.merge(observer_.keep_steps(run_.spec.label).to_numbers());
}

namespace {

/// metrics.jsonl of the run to which the checkpoint belongs: RUN/checkpoints/CHECKPOINT of one run,
/// RUN/checkpoints/LABEL/CHECKPOINT of several.
std::filesystem::path metrics_of(const std::filesystem::path& checkpoint) {
  std::filesystem::path folder = checkpoint.parent_path();
  if (folder.filename() != kCheckpoints) folder = folder.parent_path();
  return folder.parent_path() / kMetricsFile;
}

}  // namespace

// Reads the steps of the run that the checkpoint does not hold. The training does not depend on
// them.
void Job::read_earlier(const std::filesystem::path& checkpoint) {
  const train::History& history = parts_->history();
  if (!is_first() || !step_lines_ || history.steps.empty()) return;
  const int64_t first = history.steps.front().step;
  if (first <= step_lines_->first) return;
  EarlierSteps earlier = read_earlier_steps(metrics_of(checkpoint), *step_lines_, first);
  if (earlier.wrong.empty()) return parts_->add_earlier(std::move(earlier.steps));
  observer_.on_note(
      fmt::format("{}: {} and report show the steps from {} on; the training does not "
                  "depend on it",
                  earlier.wrong, kMetricsFile, first));
}

bool Job::advance(int64_t steps) try {
  if (!parts_) return false;
  random_->give_back();
  profile::reset_peak_resident_memory();
  memory_.begin();
  cores_.begin();
  measures_ = true;
  const bool is_going = parts_->advance(steps);
  measured();
  measures_ = false;
  random_->keep();
  return is_going;
} catch (const std::exception& error) {
  say_what_fits(error);
  throw;
}

// The measurements of the whole run until now. In the middle of a part it begins a new measurement.
Job::Measured Job::measured() {
  if (measures_) {
    cores_.end();
    memory_.end();
    peak_resident_bytes_ = std::max(peak_resident_bytes_, profile::resident_memory().peak_bytes);
    memory_.begin();
    cores_.begin();
  }
  Measured all{.peak_bytes = std::max(before_.peak_bytes, memory_.use().peak_bytes),
               .peak_resident_bytes = std::max(before_.peak_resident_bytes, peak_resident_bytes_),
               .cores = before_.cores};
  all.cores += cores_.readings();
  return all;
}

// Saves the last state. A failure is not reported: the exception that ended the other run is. The
// other ranks, which would have to send their share of the state, may have no exception.
void Job::save_last() {
  if (options_.group && config_.shard_optimizer) return;
  if (!parts_ || !is_first() || options_.checkpoints.empty() || parts_->history().steps.empty())
    return;
  try {
    checkpoint::Checkpoint state = parts_->checkpoint();
    add_numbers(state);
    checkpoint::save(options_.checkpoints, parts_->history().steps.back().step, state,
                     {.keep_last = config_.keep_last});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
  }
}

RunResult Job::finish() try {
  if (!parts_) return std::move(result_);
  train::History& history = result_.history;
  history = parts_->history();
  if (history.failed) history.failed = in_words_of_the_program(*history.failed);
  const Measured all = measured();
  result_.peak_bytes = all.peak_bytes;
  result_.peak_resident_bytes = all.peak_resident_bytes;
  result_.cores_share = profile::cores_share(all.cores);
  result_.involuntary_switches = all.cores.involuntary_switches;
  result_.seconds = history.seconds();
  result_.seconds_per_epoch = seconds_per_epoch(history, workload_.train->all_examples());
  result_.skipped_steps = history.skipped_steps;
  result_.remark = remark_on(history);
  result_.recipe_layers = settings::layers_in_words(*network_.module);  // those that were used
  if (what_if_) what_if_->answer(options_, result_, observer_);
  if (is_first() && has_checkpoint(options_.checkpoints))
    result_.checkpoint_bytes = bytes_of(checkpoint::find(options_.checkpoints));
  if (history.stopped) return std::move(result_);
  trainer_->swap_average();  // the average, if there is one, is shipped and tested
  test();
  return std::move(result_);
} catch (const std::exception& error) {
  say_what_fits(error);
  throw;
}

namespace {

void put_in_place(const checkpoint::NamedTensors& weights, const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters())
    if (const auto found = weights.find(item.key()); found != weights.end())
      item.value().detach().copy_(found->second);
}

}  // namespace

// Tests the file itself, so that the accuracy is the file's: written from one module, read into
// another.
void Job::test() {
  const auto seed = static_cast<uint64_t>(config_.seed);
  const Precision& precision = run_.spec.precision;
  train::Network shipped = workload_.make_network(seed);
  const bool ships = any_rank(!options_.folder.empty());
  const auto& trained = parts_->history().steps;
  const int64_t steps = trained.empty() ? 0 : trained.back().step;
  if (!options_.folder.empty()) {
    const auto file = options_.folder / (options_.prefix + "model.safetensors");
    checkpoint::Metadata texts =
        workload::model_texts(run_, workload_, /*is_average=*/config_.ema > 0);
    texts["demi.step"] = std::to_string(steps);
    result_.model_bytes = workload::save_shipped_weights(
        *network_.module, *shipped.module, precision, file, config_, std::move(texts));
    shipped = workload_.make_network(seed + 1);
    workload::load_shipped_weights(*shipped.module, precision, file);
    if (precision.is_mixed()) settings::apply_policy(run_, shipped);
  } else if (ships) {
    to_precision(*shipped.module, precision.shipped());
    if (precision.is_mixed()) settings::apply_policy(run_, shipped);
  }
  demi::set_step(*shipped.module, steps - 1);  // a recipe that was over stays so
  // The other ranks get what rank 0 read.
  if (ships && options_.group) distributed::broadcast_weights(*shipped.module, *options_.group);
  if (!workload_.test) return;
  train::EvaluateOptions test{
      .precision = precision, .device = device_, .op_policy = run_.op_policy, .loss = run_.loss};
  test.per_class = options_.per_class && !workload_.classes.empty();  // tokens have no names
  if (result_.top_k > 0) test.metrics = {train::top_k(result_.top_k)};
  test.flush_subnormals = config_.flush_subnormals;
  test.backends = run_.backends;
  test.should_stop = [this] { return observer_.should_stop(); };
  test.group = options_.group.get();
  // A run that has been trained is not lost for it.
  if (config_.cuda_graph != "off") test.graph = loop::GraphMode::automatic;
  train::History& history = result_.history;
  if (ships) {
    const train::Evaluation low = train::evaluate(shipped, *workload_.test, test);
    history.stopped = low.stopped;
    if (low.stopped) return;
    result_.test_loss = low.loss;
    result_.test_accuracy = low.accuracy;
    if (!low.metrics.empty()) result_.test_top_k_accuracy = low.metrics.front().second;
    result_.class_accuracy = low.class_accuracy;
    if (!history.failed && !std::isfinite(low.loss))
      history.failed = "the test loss of the weights as shipped is NaN or Inf";
  }
  const auto weights = trainer_->trained_weights();  // not their rounding
  to_precision(*network_.module, c10::kFloat);  // module->to() would convert integer buffers, too
  put_in_place(weights, *network_.module);
  test.precision = parse_precision("fp32");
  const train::Evaluation exact = train::evaluate(network_, *workload_.test, test);
  history.stopped = exact.stopped;
  if (!exact.stopped) result_.test_accuracy_fp32_eval = exact.accuracy;
}

}  // namespace demi::recipes

#include "cli/session.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/core/atomic_file.h"
#include "demi/core/error.h"
#include "demi/distributed/nccl.h"
#include "demi/profile/memory.h"
#include "lab/bench/peak.h"
#include "lab/doctor/minor_speedup.h"
#include "lab/recipes/find_start.h"
#include "lab/recipes/run_record.h"
#include "lab/recipes/starting_weights.h"
#include "lab/recipes/what_if.h"
#include "lab/report/format.h"
#include "lab/results/compare_report.h"
#include "lab/results/health.h"
#include "lab/settings/recipe.h"
#include "lab/workload/batch_size.h"
#include "lab/workload/model_data.h"

namespace demi::cli {
namespace {

namespace fs = std::filesystem;

// Weights, checkpoints and report of the recipes here.
constexpr std::uint64_t kNeededBytes = 64U << 20U;

// Number of the last steps that a run's checkpoint holds whole; earlier ones are lines of
// metrics.jsonl.
constexpr int64_t kKeptSteps = 1000;

std::ostream& nowhere() {
  static std::ostream stream(nullptr);
  return stream;
}

// Wrong products are reported by `demi bench matmul`, and end no training.
double peak_of(const Precision& precision, c10::Device device) {
  try {
    return bench::peak_flop_per_second(precision, device);
  } catch (const TrainingError&) {
    return 0;
  }
}

// The peaks of all ranks together, which measure at once. Each precision is measured once.
std::vector<double> peaks_of(const std::vector<settings::Resolved>& runs,
                             const settings::Config& config) {
  std::map<std::string_view, double> by_precision;
  std::vector<double> peaks;
  for (const settings::Resolved& run : runs) {
    const Precision& precision = run.spec.precision;
    const auto [peak, is_new] = by_precision.try_emplace(precision.name, 0);
    if (is_new) peak->second = peak_of(precision, run.device) * static_cast<double>(config.ranks);
    peaks.push_back(peak->second);
  }
  return peaks;
}

std::map<std::string, double> peaks_by_label(const recipes::CompareOptions& options) {
  std::map<std::string, double> peaks;
  for (std::size_t i = 0; i < options.peak_flop_per_second.size(); ++i)
    peaks[options.runs[i].spec.label] = options.peak_flop_per_second[i];
  return peaks;
}

// The ranks' group; null for one process.
std::shared_ptr<distributed::ProcessGroup> group_of(const Start& start, c10::Device device) {
  if (start.config.ranks > 1 && !device.is_cpu()) {
    const distributed::Nccl& nccl = distributed::load_nccl();
    if (!nccl.make)
      throw DeviceError({.where = start.command,
                         .what = "several ranks on GPUs meet through NCCL, which is not here",
                         .seen = nccl.why,
                         .accepted = "cpu",
                         .advice = "--device cpu, or one rank; demi that is configured with "
                                   "-DDEMI_NCCL=ON has NCCL, or says what is missing"});
  }
  return meet_ranks(start.command, start.recipe, start.config);
}

}  // namespace

Session::Session(Start start)
    : start_(std::move(start)),
      config_(start_.config),
      device_(device_of_this_rank(config_)),
      group_(group_of(start_, device_)),
      progress_(std::make_shared<results::ShowProgress>(
          is_first() ? std::cerr : nowhere(), report::Terminal::of(STDERR_FILENO), device_)) {
  if (!start_.folder.empty() && is_first()) lock_.emplace(start_.folder);
  profile::count_cpu_memory();
  backends_.emplace(settings::backends_of(config_));
  resolve_config();
  load_data();
  if (config_.dry_run) note("a dry run: two training steps and one test batch, nothing is kept");
}

// Sets the settings that the device and a dry run decide.
void Session::resolve_config() {
  config_.device = device_.str();
  if (config_.dry_run) config_.epochs = 1;
  if (config_.precision == "mixed") config_.precision = mixed_precision_of(device_.type()).name;
}

// The data of the checkpoint that training resumes, whose classes and words count.
std::shared_ptr<const workload::ModelData> Session::saved_data() const {
  if (!start_.resume_from.empty()) return workload::data_of_checkpoint(start_.resume_from);
  if (start_.folder.empty()) return nullptr;
  for (const fs::path& folder : recipes::checkpoint_folders(start_.folder))
    if (auto model = workload::data_of_checkpoint(folder)) return model;
  return nullptr;
}

void Session::load_data() {
  const workload::RankPart part{.rank = group_ ? group_->rank() : 0, .ranks = config_.ranks};
  const auto model = saved_data();
  const workload::WorkloadMaker workload_of =
      workload::read_data(settings::resolve(config_, device_), part, model);
  if (config_.batch_size == 0) find_batch_size(workload_of);
  workload_ = workload_of(config_.batch_size);
  if (is_first()) show_network(workload_.about);
  progress_->set_items(workload_.items, workload_.items_of_example);
  const bool has_new_words =
      workload_.unknown_train.value_or(0) > 0 && config_.vocabulary_size == 0;
  if (is_first() && has_new_words) note(workload::say_unknown(*workload_.unknown_train, *model));
  if (is_first() && !workload_.note_on_data.empty()) note(workload_.note_on_data);
  if (!group_) return;
  const auto examples = [](const auto& loader) { return loader ? loader->all_examples() : 0; };
  group_->require_same(
      "the data",
      fmt::format("{} training examples\n{} test examples\n{} classes\n", examples(workload_.train),
                  examples(workload_.test), workload_.classes.size()));
  say_what_is_left_out();
}

void Session::say_what_is_left_out() const {
  const int64_t used = workload_.train->all_examples(), left_out = workload_.train->left_out();
  if (!is_first() || left_out == 0) return;
  note(
      fmt::format("{} of {} training examples {} left out of each epoch, {}: {} ranks get equally "
                  "many",
                  left_out, used + left_out, left_out == 1 ? "is" : "are",
                  left_out == 1 ? "another one each time" : "others each time", config_.ranks));
}

void Session::find_batch_size(const workload::WorkloadMaker& workload_of) {
  settings::Config provisional = config_;
  provisional.batch_size = 32;
  const workload::Workload workload = workload_of(provisional.batch_size);
  const auto say_trial = [](const workload::BatchTrial& one) {
    const std::string room = report::format_bytes(one.room_bytes);
    note(std::isfinite(one.needed_bytes)
             ? fmt::format("batch size {}: a run takes {} of {}", one.size,
                           report::format_bytes(one.needed_bytes), room)
             : fmt::format("batch size {}: more than {}", one.size, room));
  };
  config_.batch_size = workload::find_batch_size(settings::resolve(provisional, device_), workload,
                                                 {.free_bytes = 0, .tried = say_trial});
  settings::check(config_);
  note(
      fmt::format("batch size {} is predicted to fit in 80 % of the free memory, the rest of the "
                  "run counted",
                  config_.batch_size));
}

// Rank 0 prints it. If it has died, the `demi` that started the ranks does; without one, rank 1.
void Session::say_how_to_resume(std::string_view when) const {
  progress_->clear();
  if (folder_) return cli::say_how_to_resume(start_.command, folder_->path(), when);
  if (group_ && group_->rank() == 1 && !told_folder_.empty() && !has_launcher())
    cli::say_how_to_resume(start_.command, told_folder_, when);
}

// A run that ended before its first step leaves nothing to resume or to look at.
void Session::remove_unused_folder() {
  if (!folder_ || !start_.folder.empty()) return;
  try {
    if (files_) files_->flush();
  } catch (
      const std::exception&) {  // NOLINT(bugprone-empty-catch): the error that came first counts
  }
  std::error_code none;
  const bool has_lines = fs::file_size(folder_->file("metrics.jsonl"), none) > 0 && !none;
  if (has_lines || !recipes::checkpoint_folders(folder_->path()).empty()) return;
  fs::remove_all(folder_->path(), none);
}

// Makes the run's folder, or opens that of the resumed run, and writes config.json.
void Session::open_folder(const recipes::CompareOptions& options) {
  if (start_.folder.empty()) {
    folder_ = report::RunFolder::create(start_.command + "-" + settings::folder_name(start_.recipe),
                                        report::runs_root(start_.run_dir), kNeededBytes);
    lock_.emplace(folder_->path());
  } else {
    folder_ = report::RunFolder::open(start_.folder);
  }
  recipes::RunRecord record{.command = start_.command,
                            .line = start_.line,
                            .recipe = start_.recipe,
                            .turn_steps = options.turn_steps,
                            .config = config_};
  for (const settings::Resolved& run : options.runs) record.runs.push_back(run.spec.label);
  write_atomically(folder_->file("config.json"), recipes::to_json(record),
                   report::kOtherRunsFolder);
}

// Rank 0's folder, so that others can name the last checkpoint if rank 0 dies. Another machine may
// not see it.
void Session::tell_folder() {
  if (folder_) tell_launcher(folder_->path());
  const fs::path told =
      distributed::broadcast_text(folder_ ? folder_->path().string() : "", 0, *group_);
  std::error_code unseen;
  if (!folder_ && (!start_.folder.empty() || fs::exists(told, unseen)))
    told_folder_ = start_.folder.empty() ? told : start_.folder;
}

// Sets the files that a run leaves in its folder while it trains.
void Session::keep_in_folder(recipes::CompareOptions& options, bool alone) {
  recipes::JobOptions& run = options.run;
  run.resume = !start_.folder.empty();
  run.resume_from = start_.resume_from;
  if (is_first()) open_folder(options);
  if (group_) tell_folder();
  if (!is_first()) {
    // It reads rank 0's checkpoints, and makes no files.
    if (!told_folder_.empty()) run.checkpoints = told_folder_ / recipes::kCheckpoints;
    return;
  }
  files_ = std::make_shared<results::FileMetrics>(folder_->path());
  run.folder = folder_->path();
  run.checkpoints = folder_->file(recipes::kCheckpoints);
  run.keep_best = run.save_in_background = alone;
  run.callbacks.push_back(files_);
  run.history_steps = kKeptSteps;
  saves_ = cli::save_requests();
}

void Session::on_run_begin(const settings::RunSpec& run) {
  progress_->set_run(several_ ? run.label : "");
  if (!peaks_.empty()) progress_->set_flops(workload_.flop_of_item, peaks_.at(run.label));
  if (files_) files_->set_run(run.label);
}

void Session::on_note(const std::string& text) { progress_->message("note: " + text); }

void Session::on_resume(const settings::RunSpec& run, const train::History& history) {
  if (!files_) return;
  // Its checkpoint has been read, and training continues.
  if (!is_trained(history)) fs::remove(folder_->file(recipes::kResultFile));
  files_->set_run(run.label);
  files_->resume(history);
  say_that_it_resumes(run, history);
}

bool Session::should_stop() { return asks_to_stop(stop_after_minutes_); }

int Session::save_requests() { return files_ ? cli::save_requests() : 0; }

void Session::before_save() {
  if (files_ && std::exchange(saves_, cli::save_requests()) != cli::save_requests())
    progress_->message("saving a checkpoint, as SIGUSR1 asks");
}

recipes::StepLines Session::keep_steps(const std::string& label) {
  return files_->keep_steps(label);
}

void Session::on_health(const monitor::StepHealth& step) {
  if (files_) files_->write(step);
}

void Session::on_origin(const monitor::Origin& origin) {
  if (config_.dry_run) return;
  if (!is_first()) {
    std::cerr << monitor::to_string(origin) << "\n";
    return;
  }
  progress_->message(monitor::to_string(origin));
  files_->write(origin);
}

void Session::on_what_if(const monitor::WhatIfResult& result) {
  if (files_) files_->write(result);
}

void Session::on_recipe_what_if(const monitor::RecipeWhatIfResult& result) {
  if (files_) files_->write(result);
}

bool Session::is_trained(const train::History& history) const {
  if (history.steps.empty()) return false;
  return static_cast<int64_t>(history.epochs.size()) >= config_.epochs ||
         (config_.steps > 0 && history.steps.back().step >= config_.steps);
}

void Session::say_that_it_resumes(const settings::RunSpec& run, const train::History& history) {
  progress_->set_run(several_ ? run.label : "");
  const std::string name = several_ ? run.label + ": " : "the run ";
  if (history.steps.empty()) {
    progress_->message(name + "begins: no checkpoint has been saved yet");
    return;
  }
  const train::StepMetrics& last = history.steps.back();
  if (is_trained(history)) {
    progress_->message(fmt::format("{}is trained already, in {} steps", name, last.step));
    return;
  }
  progress_->message(
      fmt::format("{}goes on after step {} in epoch {}", name, last.step, last.epoch));
  progress_->resume(history,
                    config_.batch_size * config_.ranks * settings::batches_of_step(config_));
}

// A recipe that can be fine-tuned has a large network.
void Session::advise_start() const {
  constexpr int64_t kFew = 10'000;
  const int64_t examples = workload_.train->all_examples();
  if (!is_first() || examples >= kFew || settings::find_recipe(start_.recipe).fine_tuning.empty())
    return;
  note(
      fmt::format("{} {} are few for new weights: --from starts from trained ones, with a rate "
                  "and epochs that suit them (docs/guide/fine_tuning.md)",
                  examples, workload_.items));
}

// Rank 0 looks for the weights, since another run may save there meanwhile. Weights that do not fit
// one of the runs are refused before any begins. A resumed run has them in its checkpoints.
void Session::find_start(const std::vector<settings::Resolved>& runs) {
  if (!start_.folder.empty() || !start_.resume_from.empty()) return;
  if (config_.from.empty()) return advise_start();
  const auto passed_over = [](const fs::path& damaged, const std::string& wrong) {
    note(damaged.string() + " is damaged and is passed over (" + wrong + ")");
  };
  std::string found =
      is_first() ? recipes::find_start(config_.from, passed_over).string() : std::string();
  if (group_) found = distributed::broadcast_text(found, 0, *group_);
  start_from_ = found;
  for (const std::string& line : recipes::check_start(runs, workload_, start_from_))
    if (is_first()) note(line);
}

recipes::CompareOptions Session::options_of(std::vector<settings::RunSpec> runs, bool alone,
                                            int64_t turn_steps) {
  if (runs.empty()) runs = recipes::default_runs(device_);
  recipes::CompareOptions options{.recipe = start_.recipe,
                                  .config = config_,
                                  .runs = settings::resolve(config_, runs, device_)};
  options.turn_steps = turn_steps;
  several_ = runs.size() > 1;
  recipes::check_what_if(config_, runs);
  note_slow_precisions(runs, device_);
  recipes::check_parts(options.runs, workload_);
  find_start(options.runs);
  options.run.start_from = start_from_;
  options.run.observer = this;
  stop_after_minutes_ = options.runs.front().stop_after_minutes;
  options.run.per_class = alone;
  options.run.group = group_;
  if (is_first()) options.run.callbacks = {progress_};
  progress_->set_keeps_best(alone && config_.keep_best > 0 && !config_.dry_run);
  progress_->set_last_step(settings::last_step(config_));
  progress_->set_best_by(settings::best_by(config_));
  // The others' batches are not seen here, and a language model's step makes no whole logits.
  if (config_.ranks == 1 && workload_.input.kind != data::Kind::tokens)
    progress_->set_top_k(workload::top_k_of(workload_, config_.top_k));
  if (workload_.flop_of_item > 0) options.peak_flop_per_second = peaks_of(options.runs, config_);
  peaks_ = peaks_by_label(options);
  return options;
}

recipes::Comparison Session::compare(std::vector<settings::RunSpec> runs, bool alone,
                                     int64_t turn_steps) {
  recipes::CompareOptions options = options_of(std::move(runs), alone, turn_steps);
  recipes::Comparison result;
  try {
    if (!config_.dry_run) keep_in_folder(options, alone);
    noting_.emplace();
    try {
      result = recipes::compare(options, workload_);
    } catch (const DataError&) {
      say_how_to_resume(" once what is damaged is mended");  // else it ends there again
      throw;
    } catch (const std::exception&) {
      say_how_to_resume();
      throw;
    }
    complete(result);
  } catch (const std::exception&) {
    remove_unused_folder();
    throw;
  }
  if (!config_.dry_run && config_.ranks == 1 && stop_signal() == 0 &&
      doctor::has_minor_speedup(result)) {
    note("the speedup is minor: a few steps more are profiled, to say why");
    doctor::explain_speedups(result, workload_, device_);
  }
  return result;
}

// The exit code for training that ended early: by a signal or the time limit, here or on another
// rank, as if it had come here.
int Session::ending_code() const {
  if (stop_signal() != 0) return kStoppedBySignal + stop_signal();
  return config_.stop_after != "0" ? int{kTimeIsOver} : kStoppedBySignal + SIGTERM;
}

// Adds the earlier part of a resumed run, and drops runs that a signal stopped before their first
// step.
void Session::complete(recipes::Comparison& result) {
  progress_->clear();
  if (!start_.folder.empty() && files_) {
    files_->flush();
    results::add_earlier_health(result, folder_->file("metrics.jsonl"));
  }
  std::erase_if(result.runs, [](const recipes::RunResult& run) {
    return run.history.stopped && run.history.steps.empty();
  });
  if (result.runs.empty()) throw Exit{ending_code()};
}

results::LayerReport Session::compare_layers(std::vector<settings::RunSpec> runs, int64_t steps) {
  results::LayerReport report{.recipe = start_.recipe,
                              .options = {.config = config_,
                                          .runs = settings::resolve(config_, runs, device_),
                                          .steps = steps,
                                          .device = device_}};
  recipes::check_parts(report.options.runs, workload_);
  find_start({settings::resolve(config_, settings::run_in(parse_precision("fp32")), device_)});
  report.options.config.from = start_from_;
  report.runs = recipes::compare_layers(report.options, workload_);
  return report;
}

void Session::finish(const results::LayerReport& report) {
  if (config_.dry_run) return;
  const auto folder = report::RunFolder::create("layers-" + settings::folder_name(start_.recipe),
                                                report::runs_root(start_.run_dir), kNeededBytes);
  write_atomically(folder.file("report.html"),
                   report::to_html(results::to_page(report, start_.line)),
                   report::kOtherRunsFolder);
  write_atomically(folder.file(recipes::kResultFile), Output::text_of(results::json_of(report)),
                   report::kOtherRunsFolder);
  std::cerr << "report: " << folder.file("report.html").string() << "\n";
}

void Session::finish(const recipes::Comparison& result) {
  const bool stopped = result.stopped || stop_signal() != 0;
  if (folder_) {
    write_atomically(folder_->file("report.html"),
                     report::to_html(results::to_page(result, start_.line)),
                     report::kOtherRunsFolder);
    if (!stopped)
      write_atomically(folder_->file(recipes::kResultFile),
                       Output::text_of(results::json_of(result)), report::kOtherRunsFolder);
    std::cerr << "report: " << folder_->file("report.html").string() << "\n";
    for (const std::string& again : recipes::lines_with_policy(result, start_.line))
      std::cerr << "with its policy: " << again << "\n";
  }
  if (!stopped) return;
  if (ending_code() == kTimeIsOver && is_first())
    note("the time of --stop-after " + config_.stop_after + " is over");
  if (is_first()) say_how_to_resume();  // it has saved; the others may have read the folder before
  throw Exit{ending_code()};
}

void require_success(const std::string& command, const recipes::Comparison& result) {
  for (const recipes::RunResult& run : result.runs) {
    if (!run.history.failed) continue;
    const bool is_mixed = run.spec.precision.is_mixed();
    throw TrainingError(
        {.where = command,
         .what = (result.runs.size() > 1 ? run.spec.label + ": " : "") + *run.history.failed,
         .advice = is_mixed ? "--no-autocast trains without the region, --no-scaler without loss "
                              "scaling"
                            : ""});
  }
}

}  // namespace demi::cli

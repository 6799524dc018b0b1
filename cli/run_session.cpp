#include "cli/run_session.h"

#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/slow_precision.h"
#include "demi/core/atomic_file.h"
#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "demi/tensor/device.h"
#include "lab/recipes/batch_size.h"
#include "lab/recipes/compare_report.h"
#include "lab/recipes/config_source.h"
#include "lab/recipes/plan.h"

namespace demi::cli {
namespace {

// Weights, state and report of the recipes here.
constexpr std::uint64_t kNeededBytes = 64U << 20U;

// What was resolved, which `--config` takes back.
std::string config_file(const train::Config& config, const std::string& recipe,
                        const std::vector<train::RunSpec>& runs, const std::string& command_line) {
  auto json = nlohmann::ordered_json{{"command", command_line}, {"recipe", recipe}};
  json["runs"] = nlohmann::ordered_json::array();
  for (const train::RunSpec& run : runs) json["runs"].push_back(run.label);
  json.update(nlohmann::ordered_json::parse(train::to_json(config)));
  return json.dump(2) + "\n";
}

}  // namespace

RunSession::RunSession(std::string command, std::string recipe, train::Config config)
    : command_(std::move(command)),
      recipe_(std::move(recipe)),
      config_(std::move(config)),
      device_(pick_device(config_.device)),
      progress_(std::make_shared<train::ShowProgress>(
          std::cerr, report::Terminal::of(STDERR_FILENO), device_)) {
  profile::count_cpu_memory();
  train::set_deterministic(config_.deterministic);
  resolve_config();
  load_data();
  if (config_.dry_run) note("a dry run: two training steps and one test batch, nothing is kept");
}

// What the device and a dry run make of the settings.
void RunSession::resolve_config() {
  config_.device = device_.str();
  if (config_.dry_run) config_.epochs = 1;
  if (config_.precision == "mixed")
    config_.precision = train::mixed_precision_of(device_.type()).name;
}

void RunSession::load_data() {
  const train::WorkloadMaker workload_of = train::read_data(config_, device_);
  if (config_.batch_size == "auto") find_batch_size(workload_of);
  workload_ = workload_of(config_);
  progress_->set_items(workload_.items);
}

void RunSession::find_batch_size(const train::WorkloadMaker& workload_of) {
  train::Config provisional = config_;
  provisional.batch_size = "32";
  const train::Workload workload = workload_of(provisional);
  const int64_t size =
      train::find_batch_size(provisional, train::run_of(provisional), workload, device_);
  config_.batch_size = std::to_string(size);
  train::check(config_);
  note("batch size " + config_.batch_size + " fits in 80 % of the free memory");
}

// Names the weights that were saved when training ended in an error.
void RunSession::say_what_is_kept() const {
  progress_->clear();
  if (!folder_) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder_->path()))
    if (entry.path().filename().string().ends_with("last.safetensors"))
      std::cerr << "kept: " << entry.path().string() << "\n";
}

train::Comparison RunSession::train(const train::CompareOptions& options) {
  noting_.emplace();
  train::Comparison result;
  try {
    result = train::compare(options, workload_);
  } catch (const std::exception&) {
    say_what_is_kept();
    throw;
  }
  progress_->clear();
  // A run that a signal stopped before its first step has no results.
  std::erase_if(result.runs, [](const train::RunResult& run) {
    return run.history.stopped && run.history.steps.empty();
  });
  if (result.runs.empty()) throw Exit{kStoppedBySignal + stop_signal()};
  return result;
}

train::Comparison RunSession::compare(std::vector<train::RunSpec> runs, const std::string& run_dir,
                                      const std::string& command_line, bool keep_best,
                                      int64_t turn_steps) {
  train::CompareOptions options{.recipe = recipe_, .config = config_, .device = device_};
  options.runs = runs.empty() ? train::default_runs(device_) : std::move(runs);
  options.turn_steps = turn_steps;
  note_slow_precisions(options.runs, device_);
  options.run.should_stop = [] { return stop_signal() != 0; };
  options.run.per_class = keep_best;
  options.run.callbacks = {progress_};
  std::shared_ptr<train::FileMetrics> files;
  if (!config_.dry_run) {
    folder_ = report::RunFolder::create(command_ + "-" + recipe_, report::runs_root(run_dir),
                                        kNeededBytes);
    options.run.folder = folder_->path();
    options.run.keep_best = keep_best;
    write_atomically(folder_->file("config.json"),
                     config_file(config_, recipe_, options.runs, command_line),
                     report::kOtherRunsFolder);
    files = std::make_shared<train::FileMetrics>(folder_->path());
    options.run.callbacks.push_back(files);
  }
  const bool several = options.runs.size() > 1;
  options.on_run_begin = [&](const train::RunSpec& run) {
    progress_->set_run(several ? run.label : "");
    if (files) files->set_run(run.label);
  };
  return train(options);
}

void RunSession::finish(const train::Comparison& result, const std::string& command_line) {
  if (folder_) {
    write_atomically(folder_->file("report.html"),
                     report::to_html(train::to_page(result, command_line)),
                     report::kOtherRunsFolder);
    std::cerr << "report: " << folder_->file("report.html").string() << "\n";
  }
  if (stop_signal() != 0) throw Exit{kStoppedBySignal + stop_signal()};
}

void require_success(const std::string& command, const train::Comparison& result) {
  for (const train::RunResult& run : result.runs) {
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

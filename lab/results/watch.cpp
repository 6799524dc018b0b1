#include "lab/results/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "demi/train/metric.h"
#include "demi/train/names.h"
#include "lab/recipes/recipe_what_if.h"
#include "lab/recipes/run_record.h"
#include "lab/recipes/what_if.h"
#include "lab/report/format.h"
#include "lab/results/health.h"
#include "lab/settings/run_spec.h"

namespace demi::results {
namespace {

constexpr double kFade = 0.95;  // weight of the past in the shown loss

}  // namespace

ShowProgress::ShowProgress(std::ostream& out, report::Terminal terminal, c10::Device device,
                           report::ProgressOptions options)
    : progress_(out, terminal, std::move(options)), view_(&views_[""]), device_(device) {}

void ShowProgress::set_run(const std::string& name) {
  view_ = &views_[name];
  view_->state.run = name;
  progress_.pause();
}

void ShowProgress::begin(View& view) const {
  report::ProgressState state;
  state.run = view.state.run;
  state.items = items_;
  view.state = std::move(state);
  view.seconds = 0;
  view.loss = std::nan("");
}

void ShowProgress::on_epoch_begin(int64_t epoch, int64_t epochs, int64_t steps) {
  if (!std::exchange(view_->resumes, false)) begin(*view_);
  report::ProgressState& state = view_->state;
  state.epoch = static_cast<int>(epoch);
  state.epochs = static_cast<int>(epochs);
  state.steps = steps;
  state.last_step = last_step_;
  progress_.begin_epoch(state);
}

void ShowProgress::resume(const train::History& history, int64_t step_examples) {
  for (const train::EpochRecord& epoch : history.epochs)
    if (epoch.validation && (!view_->best || epoch.validation->better_than(*view_->best, best_by_)))
      view_->best = epoch.validation;
  const auto ended = static_cast<int64_t>(history.epochs.size());
  if (history.steps.empty() || history.steps.back().epoch <= ended) return;
  View& view = *view_;
  begin(view);
  view.resumes = true;
  report::ProgressState& state = view.state;
  for (const train::StepMetrics& step : history.steps) {
    if (step.epoch <= ended) continue;
    if (state.step++ == 0) view.first_step = step.step - 1;
    state.examples += step_examples;
    view.seconds += step.seconds;
    view.loss = std::isfinite(view.loss) ? kFade * view.loss + (1 - kFade) * step.loss : step.loss;
    if (step.accuracy)
      state.correct = state.correct.value_or(0) +
                      std::llround(*step.accuracy * static_cast<double>(step_examples));
  }
  state.loss = view.loss;
}

// Counts without a wait for the device: it is read when steps are shown, after the device was.
void ShowProgress::after_forward(const train::StepView& view, const at::Tensor& output) {
  if (top_k_ == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor right = train::top_k(top_k_).sum(output.detach(), view.input("target"));
  view_->in_top_k = view_->in_top_k.defined() ? view_->in_top_k + right : right;
  view_->seen += view.input("target").size(0);
}

std::string ShowProgress::top_k_text() const {
  if (!view_->in_top_k.defined()) return "";
  return fmt::format(
      "top-{} {}", top_k_,
      report::format_percent(view_->in_top_k.item<double>() / static_cast<double>(view_->seen)));
}

void ShowProgress::on_step(const train::StepMetrics& step, int64_t examples) {
  View& view = *view_;
  report::ProgressState& state = view.state;
  if (state.step == 0) view.first_step = step.step - 1;
  view.seconds += step.seconds;
  view.loss = std::isfinite(view.loss) ? kFade * view.loss + (1 - kFade) * step.loss : step.loss;
  state.step = step.step - view.first_step;
  state.loss = view.loss;
  if (step.accuracy) {
    const double of_step = *step.accuracy * static_cast<double>(examples - state.examples);
    state.correct = state.correct.value_or(0) + std::llround(of_step);
    state.accuracy = static_cast<double>(*state.correct) / static_cast<double>(examples);
  }
  state.examples = examples;
  state.learning_rate = step.learning_rate;
  state.loss_scale = step.loss_scale;
  if (view.seconds > 0) state.items_per_second = static_cast<double>(examples) / view.seconds;
  state.memory_bytes = static_cast<double>(profile::memory_use(device_).peak_bytes);
  state.remark = top_k_text();
  progress_.update(by_item(state));
}

report::ProgressState ShowProgress::by_item(report::ProgressState state) const {
  if (items_of_example_ > 1) state.correct.reset();  // which is counted by example
  if (!state.items_per_second) return state;
  *state.items_per_second *= static_cast<double>(items_of_example_);
  if (flop_of_item_ > 0 && peak_per_second_ > 0)
    state.share_of_peak = *state.items_per_second * flop_of_item_ / peak_per_second_;
  return state;
}

void ShowProgress::on_evaluate_begin(int64_t) {
  view_->state.phase = "evaluating";
  progress_.update(by_item(view_->state));
}

// Writes one line for training and one for the test set, so that their figures cannot be confused.
void ShowProgress::on_epoch_end(const train::EpochRecord& epoch) {
  report::ProgressState& state = view_->state;
  if (epoch.seconds > 0)
    state.items_per_second = static_cast<double>(epoch.examples) / epoch.seconds;
  state.remark = view_->seen == epoch.examples ? top_k_text() : "";  // one that went on has a part
  keep_line("training", epoch.loss, epoch.accuracy, epoch.examples);
  state.remark.clear();
  view_->in_top_k.reset();
  view_->seen = 0;
  if (!epoch.validation) return;
  const train::Evaluation& test = *epoch.validation;
  for (const auto& [name, value] : test.metrics)
    state.remark += (state.remark.empty() ? "" : "  ") + name + " " + report::format_percent(value);
  if (!view_->best || test.better_than(*view_->best, best_by_)) {
    view_->best = test;
    state.remark += state.remark.empty() ? "" : "  ";
    state.remark += keeps_best_ ? "saved as the best" : "the best so far";
  }
  const auto training = state;
  state.learning_rate.reset();
  state.loss_scale.reset();
  state.items_per_second.reset();
  state.memory_bytes.reset();
  keep_line("test", test.loss, test.accuracy, test.examples);
  state = training;
  state.phase.clear();
  state.remark.clear();
}

void ShowProgress::keep_line(const char* phase, double loss, std::optional<double> accuracy,
                             int64_t examples) {
  report::ProgressState& state = view_->state;
  state.phase = phase;
  state.loss = loss;
  state.accuracy = accuracy;
  state.examples = examples;
  state.correct.reset();
  if (accuracy) state.correct = std::llround(*accuracy * static_cast<double>(examples));
  progress_.end_epoch(by_item(state));
  state.phase.clear();
}

FileMetrics::FileMetrics(std::filesystem::path folder)
    : folder_(std::move(folder)), run_(&runs_[""]) {
  log_.emplace(folder_ / recipes::kMetricsFile);
}

void FileMetrics::set_run(const std::string& name) {
  run_ = &runs_[name];
  if (!run_->folder.empty()) return;  // another turn
  run_->name = name;
  run_->folder = folder_ / settings::file_name(name);
  std::filesystem::create_directories(run_->folder);
}

// The file of the present run's events; none where it was not named.
report::EventFile* FileMetrics::events() {
  if (!run_->events && !run_->folder.empty())
    run_->events = std::make_unique<report::EventFile>(run_->folder, run_->last_step);
  return run_->events.get();
}

// Removes the lines that the run will write again, and returns which of the others are there. The
// file has its run's lines in order, and lacks only lines at the end, if any.
FileMetrics::Written FileMetrics::keep_lines(const train::History& history) {
  const int64_t last_step = history.steps.empty() ? 0 : history.steps.back().step;
  const auto last_epoch = static_cast<int64_t>(history.epochs.size());
  Written written;
  log_->sync();
  log_.reset();
  report::keep_metrics(folder_ / recipes::kMetricsFile, [&](const report::MetricFields& line) {
    const std::string* run = report::find_metric<std::string>(line, "run");
    const int64_t *step = report::find_metric<int64_t>(line, "step"),
                  *epoch = report::find_metric<int64_t>(line, "epoch");
    if (!run || *run != run_->name || !step || !epoch) return true;
    // Lines beside the step's own, which may be missing.
    const bool is_of_monitor = report::find_metric<std::string>(line, "gradients") != nullptr;
    if (is_of_monitor && *step <= last_step) written.monitored = *step;
    if (is_of_monitor || report::find_metric<std::string>(line, "anomaly") ||
        report::find_metric<std::string>(line, "what_if"))
      return *step <= last_step;
    const bool of_epoch = report::find_metric<double>(line, "epoch_loss") != nullptr;
    if (of_epoch ? *epoch > last_epoch : *step > last_step) return false;
    (of_epoch ? written.epoch : written.step) = of_epoch ? *epoch : *step;
    return true;
  });
  log_.emplace(folder_ / recipes::kMetricsFile);
  return written;
}

void FileMetrics::resume(const train::History& history) {
  const Written written = keep_lines(history);
  // Events of the last step are written again, since those of its epoch's end may follow.
  const bool has_events = !run_->folder.empty() && !std::filesystem::is_empty(run_->folder);
  const int64_t last_step = history.steps.empty() ? 0 : history.steps.back().step;
  const int64_t first_event = has_events ? last_step : 0;
  run_->events.reset();
  run_->last_step = last_step;
  auto epoch = history.epochs.begin();
  const auto end_epochs_before = [&](int64_t number) {
    for (; epoch != history.epochs.end() && epoch->epoch < number; ++epoch) {
      if (epoch->epoch > written.epoch) write(*epoch);
      if (run_->last_step >= first_event) tell(*epoch);
    }
  };
  events();  // begins at last_step
  run_->steps = {.first = history.steps.empty() ? 1 : history.steps.front().step};
  for (const train::StepMetrics& step : history.steps) {
    end_epochs_before(step.epoch);
    run_->last_step = step.step;
    const std::string line = report::metrics_line(recipes::step_fields(run_->name, step));
    if (step.step > written.step) log_->write_line(line);
    run_->steps.add(line, step.step);
    if (step.step >= first_event) tell(step);
  }
  end_epochs_before(std::numeric_limits<int64_t>::max());
  if (written.monitored >= std::max<int64_t>(first_event, 1)) tell_monitored_steps(first_event);
  flush();
}

// Writes the events of the monitored steps from `first` on, as metrics.jsonl has them.
void FileMetrics::tell_monitored_steps(int64_t first) {
  report::EventFile* file = events();
  if (!file) return;
  HealthLines read = read_health(folder_ / recipes::kMetricsFile);
  for (const monitor::StepHealth& step : read.of_run[run_->name])
    if (step.step >= first) write_health(*file, step);
}

void FileMetrics::on_step(const train::StepMetrics& step, int64_t) {
  run_->last_step = step.step;
  write(step);
  tell(step);
}

void FileMetrics::on_epoch_end(const train::EpochRecord& epoch) {
  write(epoch);
  tell(epoch);
  try {
    log_->sync();
    if (run_->events) run_->events->flush();
  } catch (const TrainingError&) {  // NOLINT(bugprone-empty-catch): they wait for the checkpoint
                                    // of the epoch, or the run's end, which warns or throws
  }
}

void FileMetrics::write(const monitor::StepHealth& step) {
  for (const report::MetricFields& line : health_lines(run_->name, step)) log_->write(line);
  if (report::EventFile* file = events()) write_health(*file, step);
}

void FileMetrics::write(const monitor::Origin& origin) {
  log_->write({{"run", run_->name},
               {"epoch", origin.epoch},
               {"step", origin.step},
               {"place", std::string(monitor::name_of(origin.place))},
               {"name", origin.name},
               {"op", origin.op},
               {"inner", origin.inner},
               {"anomaly", monitor::to_string(origin)}});
}

void FileMetrics::write(const monitor::WhatIfResult& result) {
  for (const report::MetricFields& line : recipes::what_if_lines(run_->name, result))
    log_->write(line);
}

void FileMetrics::write(const monitor::RecipeWhatIfResult& result) {
  for (const report::MetricFields& line : recipes::recipe_what_if_lines(run_->name, result))
    log_->write(line);
}

void FileMetrics::flush() {
  log_->flush();
  for (auto& [name, run] : runs_)
    if (run.events) run.events->flush();
}

void FileMetrics::write(const train::StepMetrics& step) {
  const std::string line = report::metrics_line(recipes::step_fields(run_->name, step));
  log_->write_line(line);
  run_->steps.add(line, step.step);
}

recipes::StepLines FileMetrics::keep_steps(const std::string& run) {
  flush();
  log_->sync();
  return runs_.at(run).steps;
}

void FileMetrics::tell(const train::StepMetrics& step) {
  report::EventFile* file = events();
  if (!file) return;
  file->scalar("loss/train", step.step, step.loss);
  file->scalar("learning_rate", step.step, step.learning_rate);
  if (step.accuracy) file->scalar("accuracy/train", step.step, *step.accuracy);
  if (step.loss_scale) file->scalar("loss_scale", step.step, *step.loss_scale);
  if (step.grad_norm) file->scalar("grad_norm", step.step, *step.grad_norm);
  file->scalar("seconds/step", step.step, step.seconds);
  file->scalar("seconds/data", step.step, step.data_seconds);
}

void FileMetrics::write(const train::EpochRecord& epoch) {
  report::MetricFields fields{
      {"run", run_->name},        {"epoch", epoch.epoch},           {"step", run_->last_step},
      {"epoch_loss", epoch.loss}, {"epoch_seconds", epoch.seconds}, {"examples", epoch.examples}};
  if (epoch.accuracy) fields.emplace_back("epoch_accuracy", *epoch.accuracy);
  for (std::size_t i = 0; i < profile::kPhaseNames.size(); ++i) {
    fields.emplace_back(std::string(profile::kPhaseNames[i]) + "_seconds", epoch.phase_seconds[i]);
  }
  if (epoch.validation) {
    fields.emplace_back("test_loss", epoch.validation->loss);
    if (epoch.validation->accuracy)
      fields.emplace_back("test_accuracy", *epoch.validation->accuracy);
    for (const auto& [name, value] : epoch.validation->metrics)
      fields.emplace_back("test_" + name, value);
    fields.emplace_back("test_seconds", epoch.validation->seconds);
  }
  log_->write(fields);
}

void FileMetrics::tell(const train::EpochRecord& epoch) {
  report::EventFile* file = events();
  if (!file || !epoch.validation) return;
  file->scalar("loss/test", run_->last_step, epoch.validation->loss);
  if (epoch.validation->accuracy)
    file->scalar("accuracy/test", run_->last_step, *epoch.validation->accuracy);
  for (const auto& [name, value] : epoch.validation->metrics)
    file->scalar(name + "/test", run_->last_step, value);
}

}  // namespace demi::results

#include "lab/recipes/watch.h"

#include <cmath>

#include "demi/profile/memory.h"

namespace demi::train {
namespace {

constexpr double kFade = 0.95;  // weight of the past in the shown loss

}  // namespace

ShowProgress::ShowProgress(std::ostream& out, report::Terminal terminal, c10::Device device)
    : progress_(out, terminal), view_(&views_[""]), device_(device) {}

void ShowProgress::set_run(const std::string& name) {
  view_ = &views_[name];
  view_->state.run = name;
  progress_.pause();
}

void ShowProgress::on_epoch_begin(int64_t epoch, int64_t epochs, int64_t steps) {
  View& view = *view_;
  if (epoch == 1) view.first_step = 0;
  report::ProgressState state;
  state.run = view.state.run;
  state.items = items_;
  state.epoch = static_cast<int>(epoch);
  state.epochs = static_cast<int>(epochs);
  state.steps = steps;
  view.state = std::move(state);
  view.seconds = 0;
  view.loss = std::nan("");
  progress_.begin_epoch(view.state);
}

void ShowProgress::on_step(const StepMetrics& step, int64_t examples) {
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
  progress_.update(state);
}

void ShowProgress::on_evaluate_begin(int64_t) {
  view_->state.phase = "evaluating";
  progress_.update(view_->state);
}

void ShowProgress::on_epoch_end(const EpochRecord& epoch) {
  report::ProgressState& state = view_->state;
  state.phase.clear();
  state.loss = epoch.validation ? epoch.validation->loss : epoch.loss;
  state.accuracy = epoch.validation ? epoch.validation->accuracy : epoch.accuracy;
  state.examples = epoch.validation ? epoch.validation->examples : epoch.examples;
  state.correct.reset();
  if (state.accuracy)
    state.correct = std::llround(*state.accuracy * static_cast<double>(state.examples));
  if (epoch.seconds > 0)
    state.items_per_second = static_cast<double>(epoch.examples) / epoch.seconds;
  progress_.end_epoch(state);
}

FileMetrics::FileMetrics(std::filesystem::path folder)
    : folder_(std::move(folder)), log_(folder_ / "metrics.jsonl"), run_(&runs_[""]) {}

void FileMetrics::set_run(const std::string& name) {
  run_ = &runs_[name];
  if (run_->events) return;  // another turn
  run_->name = name;
  std::string events = name;
  for (char& c : events) {
    if (c == ':' || c == '=') c = '-';
  }
  std::filesystem::create_directories(folder_ / events);
  run_->events = std::make_unique<report::EventFile>(folder_ / events);
}

void FileMetrics::on_step(const StepMetrics& step, int64_t) {
  run_->last_step = step.step;
  report::MetricFields fields{
      {"run", run_->name}, {"epoch", step.epoch}, {"step", step.step}, {"loss", step.loss}};
  if (step.accuracy) fields.emplace_back("accuracy", *step.accuracy);
  fields.emplace_back("learning_rate", step.learning_rate);
  if (step.loss_scale) fields.emplace_back("loss_scale", *step.loss_scale);
  fields.emplace_back("skipped", step.skipped);
  fields.emplace_back("seconds", step.seconds);
  fields.emplace_back("data_seconds", step.data_seconds);
  log_.write(fields);
  if (!run_->events) return;
  run_->events->scalar("loss/train", step.step, step.loss);
  run_->events->scalar("learning_rate", step.step, step.learning_rate);
  if (step.accuracy) run_->events->scalar("accuracy/train", step.step, *step.accuracy);
  if (step.loss_scale) run_->events->scalar("loss_scale", step.step, *step.loss_scale);
  run_->events->scalar("seconds/step", step.step, step.seconds);
  run_->events->scalar("seconds/data", step.step, step.data_seconds);
}

void FileMetrics::on_epoch_end(const EpochRecord& epoch) {
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
  log_.write(fields);
  log_.sync();
  if (!run_->events) return;
  if (epoch.validation) {
    run_->events->scalar("loss/test", run_->last_step, epoch.validation->loss);
    if (epoch.validation->accuracy)
      run_->events->scalar("accuracy/test", run_->last_step, *epoch.validation->accuracy);
    for (const auto& [name, value] : epoch.validation->metrics)
      run_->events->scalar(name + "/test", run_->last_step, value);
  }
  run_->events->flush();
}

}  // namespace demi::train

#include "demi/train/watch.h"

#include <cmath>

#include "demi/profile/memory.h"

namespace demi::train {
namespace {

constexpr double kFade = 0.95;  // weight of the past in the shown loss

}  // namespace

ShowProgress::ShowProgress(std::ostream& out, report::Terminal terminal, c10::Device device)
    : progress_(out, terminal), device_(device) {}

void ShowProgress::on_epoch_begin(int64_t epoch, int64_t epochs, int64_t steps) {
  if (epoch == 1) first_step_ = 0;
  report::ProgressState state;
  state.run = state_.run;
  state.items = items_;
  state.epoch = static_cast<int>(epoch);
  state.epochs = static_cast<int>(epochs);
  state.steps = steps;
  state_ = std::move(state);
  epoch_start_ = std::chrono::steady_clock::now();
  loss_ = std::nan("");
  progress_.begin_epoch(state_);
}

void ShowProgress::on_step(const StepRecord& step, int64_t examples) {
  if (state_.step == 0) first_step_ = step.step - 1;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - epoch_start_;
  loss_ = std::isfinite(loss_) ? kFade * loss_ + (1 - kFade) * step.loss : step.loss;
  state_.step = step.step - first_step_;
  state_.loss = loss_;
  if (step.accuracy) {
    const double of_step = *step.accuracy * static_cast<double>(examples - state_.examples);
    state_.correct = state_.correct.value_or(0) + std::llround(of_step);
    state_.accuracy = static_cast<double>(*state_.correct) / static_cast<double>(examples);
  }
  state_.examples = examples;
  state_.learning_rate = step.learning_rate;
  state_.loss_scale = step.loss_scale;
  if (elapsed.count() > 0)
    state_.items_per_second = static_cast<double>(examples) / elapsed.count();
  state_.memory_bytes = static_cast<double>(profile::memory_use(device_).peak_bytes);
  progress_.update(state_);
}

void ShowProgress::on_evaluate_begin(int64_t) {
  state_.phase = "evaluating";
  progress_.update(state_);
}

void ShowProgress::on_epoch_end(const EpochRecord& epoch) {
  state_.phase.clear();
  state_.loss = epoch.validation ? epoch.validation->loss : epoch.loss;
  state_.accuracy = epoch.validation ? epoch.validation->accuracy : epoch.accuracy;
  state_.examples = epoch.validation ? epoch.validation->examples : epoch.examples;
  state_.correct.reset();
  if (state_.accuracy)
    state_.correct = std::llround(*state_.accuracy * static_cast<double>(state_.examples));
  if (epoch.seconds > 0)
    state_.items_per_second = static_cast<double>(epoch.examples) / epoch.seconds;
  progress_.end_epoch(state_);
}

FileMetrics::FileMetrics(std::filesystem::path folder)
    : folder_(std::move(folder)), log_(folder_ / "metrics.jsonl") {}

void FileMetrics::set_run(const std::string& name) {
  run_ = name;
  std::string events = name;
  for (char& c : events) {
    if (c == ':' || c == '=') c = '-';
  }
  std::filesystem::create_directories(folder_ / events);
  events_ = std::make_unique<report::EventFile>(folder_ / events);
}

void FileMetrics::on_step(const StepRecord& step, int64_t) {
  last_step_ = step.step;
  report::MetricFields fields{
      {"run", run_}, {"epoch", step.epoch}, {"step", step.step}, {"loss", step.loss}};
  if (step.accuracy) fields.emplace_back("accuracy", *step.accuracy);
  fields.emplace_back("learning_rate", step.learning_rate);
  if (step.loss_scale) fields.emplace_back("loss_scale", *step.loss_scale);
  fields.emplace_back("skipped", step.skipped);
  fields.emplace_back("seconds", step.seconds);
  fields.emplace_back("data_seconds", step.data_seconds);
  log_.write(fields);
  if (!events_) return;
  events_->scalar("loss/train", step.step, step.loss);
  events_->scalar("learning_rate", step.step, step.learning_rate);
  if (step.accuracy) events_->scalar("accuracy/train", step.step, *step.accuracy);
  if (step.loss_scale) events_->scalar("loss_scale", step.step, *step.loss_scale);
  events_->scalar("seconds/step", step.step, step.seconds);
  events_->scalar("seconds/data", step.step, step.data_seconds);
}

void FileMetrics::on_epoch_end(const EpochRecord& epoch) {
  report::MetricFields fields{{"run", run_},
                              {"epoch", epoch.epoch},
                              {"step", last_step_},
                              {"epoch_loss", epoch.loss},
                              {"epoch_seconds", epoch.seconds},
                              {"examples", epoch.examples}};
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
  if (!events_) return;
  if (epoch.validation) {
    events_->scalar("loss/test", last_step_, epoch.validation->loss);
    if (epoch.validation->accuracy)
      events_->scalar("accuracy/test", last_step_, *epoch.validation->accuracy);
  }
  events_->flush();
}

}  // namespace demi::train

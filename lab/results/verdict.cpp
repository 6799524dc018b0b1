#include "lab/results/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "lab/report/format.h"

namespace demi::results {
namespace {

constexpr std::size_t kSteps = 10;      // at each end of a run, whose losses are averaged
constexpr double kStandsStill = 0.02;   // of the loss at the beginning
constexpr double kFarDown = 0.5;        // likewise: what no noise of a few steps is
constexpr double kExplodes = 1000;      // times the norm of the first monitored step
constexpr double kLost = 0.5;           // of a layer's updates, in each monitored step
constexpr std::size_t kMostLayers = 8;  // that are named

constexpr const char* kLearned = "learned";

std::string words_of(const recipes::RunResult& run) {
  const auto is_lost = [](const train::StepMetrics& step) { return !std::isfinite(step.loss); };
  if (!ended_soundly(run)) {
    const auto first = std::ranges::find_if(run.history.steps, is_lost);
    return fmt::format(
        "{} ended in NaN or Inf, from step {} on", run.spec.label,
        first == run.history.steps.end() ? run.history.steps.back().step : first->step);
  }
  const auto [first, last, verdict] = learning_of(run);
  return fmt::format("{} {} to {}{}", run.spec.label, report::format_number(first, 4),
                     report::format_number(last, 4), verdict.empty() ? "" : " (" + verdict + ")");
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostLayers); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMostLayers) text += fmt::format(" and {} more", names.size() - kMostLayers);
  return text;
}

// The monitored steps of one layer's weights.
struct LayerLife {
  std::string name;
  bool is_dead = true, is_nonfinite = false;
  std::optional<double> first_norm;
  double last_norm = 0;
  std::int64_t first_step = 0, last_step = 0;
  std::optional<double> least_unchanged;
  double last_unchanged = 0;

  void add(const monitor::LayerHealth& layer, const monitor::StepHealth& step) {
    const monitor::ExponentHistogram& gradients = layer.weight_gradients;
    is_dead = is_dead && gradients.elements() > 0 && gradients.zeros == gradients.elements();
    is_nonfinite = is_nonfinite || gradients.infinities + gradients.nans > 0;
    last_norm = gradients.norm() / step.loss_scale.value_or(1);
    last_step = step.step;
    if (!first_norm && last_norm > 0) {
      first_norm = last_norm;
      first_step = step.step;
    }
    if (layer.unchanged) {
      least_unchanged = std::min(least_unchanged.value_or(1), *layer.unchanged);
      last_unchanged = *layer.unchanged;
    }
  }
};

// The layers, in the order in which steps name them. `steps`: those that were taken.
std::vector<LayerLife> lives_of(const recipes::RunResult& run, std::int64_t& steps) {
  std::vector<LayerLife> lives;
  std::map<std::string, std::size_t> places;
  for (const monitor::StepHealth& step : run.health) {
    if (step.skipped) continue;
    ++steps;
    for (const monitor::LayerHealth& layer : step.layers) {
      const auto [place, is_new] = places.try_emplace(layer.name, lives.size());
      if (is_new) lives.push_back({.name = layer.name});
      lives[place->second].add(layer, step);
    }
  }
  return lives;
}

}  // namespace

bool ended_soundly(const recipes::RunResult& run) {
  const auto& steps = run.history.steps;
  return !run.history.failed && (steps.empty() || std::isfinite(steps.back().loss));
}

// Averages the finite losses of a tenth of the steps at each end: a step that overflows is skipped.
// The last loss of a run that ends in NaN or Inf is as it is.
Learning learning_of(const recipes::RunResult& run) {
  std::vector<double> losses;
  for (const train::StepMetrics& step : run.history.steps)
    if (std::isfinite(step.loss)) losses.push_back(step.loss);
  if (losses.empty()) losses.push_back(run.history.steps.back().loss);
  const std::size_t count = std::clamp<std::size_t>(losses.size() / 10, 1, kSteps);
  Learning learning;
  for (std::size_t i = 0; i < count; ++i) {
    learning.first += losses[i] / static_cast<double>(count);
    learning.last += losses[losses.size() - 1 - i] / static_cast<double>(count);
  }
  const double end = run.history.steps.back().loss;
  if (!std::isfinite(end)) learning.last = end;
  const double change = (learning.last - learning.first) / std::abs(learning.first);
  learning.verdict = !ended_soundly(run)                ? "NaN or Inf"
                     : !std::isfinite(change)           ? ""
                     : std::abs(change) <= kStandsStill ? "stands still"
                     : change < 0                       ? kLearned
                                                        : "grew";
  return learning;
}

bool learned_differently(const recipes::Comparison& comparison) {
  bool some = false, others = false;
  for (const recipes::RunResult& run : comparison.runs) {
    if (run.history.steps.empty()) continue;
    const auto [first, last, verdict] = learning_of(run);
    some = some || (verdict == kLearned && first - last >= kFarDown * std::abs(first));
    others = others || (verdict != kLearned && !verdict.empty());
  }
  return some && others;
}

std::string learning_verdict(const recipes::Comparison& comparison) {
  if (comparison.runs.size() < 2) return "";
  std::string text;
  for (const recipes::RunResult& run : comparison.runs) {
    if (run.history.steps.empty()) continue;
    text += (text.empty() ? "Training loss, first steps to last: " : "; ") + words_of(run);
  }
  return text.empty() ? "" : text + ".";
}

std::vector<std::string> health_verdicts(const recipes::RunResult& run) {
  std::int64_t looked_at = 0;
  const std::vector<LayerLife> lives = lives_of(run, looked_at);
  if (looked_at == 0) return {};
  std::vector<std::string> dead, nonfinite, exploding, lost;
  for (const LayerLife& life : lives) {
    if (life.is_dead) dead.push_back(life.name);
    if (life.is_nonfinite) nonfinite.push_back(life.name);
    if (life.least_unchanged.value_or(0) > kLost)
      lost.push_back(fmt::format("{} ({})", life.name, report::format_share(life.last_unchanged)));
    if (!life.is_nonfinite && life.first_norm && life.last_norm > kExplodes * *life.first_norm)
      exploding.push_back(fmt::format("{} ({} in step {}, {} in step {})", life.name,
                                      report::format_number(*life.first_norm, 3), life.first_step,
                                      report::format_number(life.last_norm, 3), life.last_step));
  }
  const std::string& label = run.spec.label;
  std::vector<std::string> verdicts;
  if (!dead.empty())
    verdicts.push_back(fmt::format(
        "{}: dead: {}. All gradients of {} weights were 0 in each of the {} monitored steps.",
        label, listed(dead), dead.size() == 1 ? "its" : "their", looked_at));
  if (!nonfinite.empty())
    verdicts.push_back(fmt::format("{}: gradients hold Inf or NaN in steps that were taken: {}.",
                                   label, listed(nonfinite)));
  if (!exploding.empty())
    verdicts.push_back(
        fmt::format("{}: gradients explode, by L2 norm: {}. A lower learning rate, or --clip-norm.",
                    label, listed(exploding)));
  if (!lost.empty())
    verdicts.push_back(fmt::format(
        "{}: updates are too small for the format of the weights, most of which the last monitored "
        "step left as they were: {}. More bits of them (--weight-mode split, or FP32 weights), or "
        "a "
        "higher learning rate.",
        label, listed(lost)));
  if (verdicts.empty())
    verdicts.push_back(
        fmt::format("{}: no layer is dead and no gradient explodes in the {} monitored step{}.",
                    label, looked_at, looked_at == 1 ? "" : "s"));
  return verdicts;
}

}  // namespace demi::results

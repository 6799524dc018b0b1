#include "demi/monitor/monitor.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/loop/observer.h"
#include "demi/monitor/activation_hooks.h"
#include "demi/monitor/layers.h"

namespace demi::monitor {
namespace {

constexpr std::int64_t kSampledElements = 1 << 16;

// Evenly spaced slices along the longest dimension.
at::Tensor sampled(const at::Tensor& parameter) {
  const at::Tensor p = parameter.detach();
  const std::int64_t step = p.numel() / kSampledElements;
  if (step < 2) return p;
  std::int64_t longest = 0;
  for (std::int64_t d = 1; d < p.dim(); ++d)
    if (p.size(d) > p.size(longest)) longest = d;
  return p.slice(longest, 0, p.size(longest), std::min(step, p.size(longest)));
}

at::Tensor square_norm(const at::Tensor& x) {
  return at::linalg_vector_norm(x, 2, {}, false, c10::kDouble).square();
}

int nearest_exponent(double scale) { return static_cast<int>(std::lround(std::log2(scale))); }

// Counted on the device, until the step is read.
struct PendingHealth {
  std::int64_t epoch = 1, step = 1;
  bool stepped = false;
  std::shared_ptr<const Layers> layers;
  std::vector<ExponentCounter> weights;
  std::shared_ptr<std::vector<ExponentCounter>> activations;
  // Samples of each layer's parameters; undefined for those without a gradient.
  std::vector<std::vector<at::Tensor>> before;
  std::vector<at::Tensor> squares;  // of each layer: fp64, (2): change, parameters
};

// One copy from each device; a layer without a trained parameter has none.
std::vector<std::optional<double>> read_ratios(const std::vector<at::Tensor>& squares) {
  std::vector<at::Tensor> here;
  for (const at::Tensor& pair : squares)
    if (pair.defined()) here.push_back(here.empty() ? pair : pair.to(here.front().device()));
  std::vector<std::optional<double>> ratios(squares.size());
  if (here.empty()) return ratios;
  const at::Tensor read = at::stack(here).cpu();
  const double* next = read.const_data_ptr<double>();
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (!squares[i].defined()) continue;
    if (next[1] != 0) ratios[i] = std::sqrt(next[0] / next[1]);
    next += 2;
  }
  return ratios;
}

}  // namespace

struct Monitor::Impl {
  std::int64_t every;
  Report report;
  std::unique_ptr<ActivationHooks> hooks;
  std::deque<PendingHealth> pending;

  bool is_due(const loop::StepView& view) const { return (view.step - 1) % every == 0; }
  // The weights' memory may have moved since the last step that was looked at.
  void begin(const loop::StepView& view) {
    PendingHealth& one = pending.emplace_back();
    one.epoch = view.epoch;
    one.step = view.step;
    one.layers = std::make_shared<const Layers>(view.module);
    const std::size_t layers = one.layers->all().size();
    one.weights.resize(layers);
    one.activations = std::make_shared<std::vector<ExponentCounter>>(layers);
  }
};

ExponentHistogram StepHealth::weight_gradients() const {
  ExponentHistogram sum;
  for (const LayerHealth& layer : layers) sum += layer.weight_gradients;
  return sum;
}

ExponentHistogram StepHealth::activation_gradients() const {
  ExponentHistogram sum;
  for (const LayerHealth& layer : layers) sum += layer.activation_gradients;
  return sum;
}

ExponentHistogram unscaled(const ExponentHistogram& scaled, double loss_scale) {
  return scaled.shifted(-nearest_exponent(loss_scale));
}

FlushedShares flushed_shares(const ExponentHistogram& scaled, double loss_scale) {
  constexpr int kFlushed = -25, kOverflow = 16;
  const auto all = static_cast<double>(scaled.elements());
  if (all == 0) return {};
  const int exponent = nearest_exponent(loss_scale);
  const std::int64_t broken = scaled.infinities + scaled.nans;
  const auto share = [&](std::int64_t n) { return static_cast<double>(n) / all; };
  return {.zero = share(scaled.zeros),
          .flushed_unscaled = share(scaled.below(kFlushed + exponent)),
          .flushed_scaled = share(scaled.below(kFlushed)),
          .overflowed_unscaled = share(scaled.from(kOverflow + exponent) + broken),
          .overflowed_scaled = share(scaled.from(kOverflow) + broken)};
}

Monitor::Monitor(int64_t every, Report report)
    : impl_(std::make_unique<Impl>(Impl{.every = every, .report = std::move(report)})) {
  if (every < 1)
    refuse({.where = "monitor.Monitor",
            .what = "steps between two looks are below 1",
            .seen = std::to_string(every),
            .accepted = "1 or more"});
}
Monitor::~Monitor() = default;

void Monitor::before_forward(const loop::StepView& view) {
  if (!impl_->is_due(view)) return;
  auto& pending = impl_->pending;
  const bool goes_on = !pending.empty() && !pending.back().stepped;
  if (!pending.empty() &&
      (pending.back().step > view.step || (!goes_on && pending.back().step == view.step)))
    pending.clear();  // of a run that was broken off
  if (pending.empty() || pending.back().step != view.step) impl_->begin(view);
  impl_->hooks.reset();
  impl_->hooks =
      std::make_unique<ActivationHooks>(pending.back().layers, pending.back().activations);
}

void Monitor::after_backward(const loop::StepView& view) {
  if (!impl_->is_due(view)) return;
  impl_->hooks.reset();
  if (!view.ends_step) return;
  const at::NoGradGuard no_grad;
  PendingHealth& one = impl_->pending.back();
  const auto& layers = one.layers->all();
  one.before.resize(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto& kept = one.before[i];
    kept.resize(layers[i].parameters.size());
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const at::Tensor& p = layers[i].parameters[k];
      one.weights[i].add(p.grad());
      if (p.grad().defined()) kept[k] = sampled(p).clone();
    }
  }
}

void Monitor::after_update(const loop::StepView& view) {
  if (!impl_->is_due(view)) return;
  const at::NoGradGuard no_grad;
  PendingHealth& one = impl_->pending.back();
  one.stepped = true;
  const auto& layers = one.layers->all();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    at::Tensor change, weights;
    for (std::size_t k = 0; k < layers[i].parameters.size(); ++k) {
      const at::Tensor& before = one.before[i][k];
      if (!before.defined()) continue;
      const at::Tensor moved = square_norm(sampled(layers[i].parameters[k]) - before),
                       old = square_norm(before);
      change = change.defined() ? change + moved : moved;
      weights = weights.defined() ? weights + old : old;
    }
    one.squares.push_back(change.defined() ? at::stack({change, weights}) : at::Tensor());
  }
  one.before.clear();
}

void Monitor::on_step(const loop::StepMetrics& step, int64_t) {
  auto& pending = impl_->pending;
  while (!pending.empty() && pending.front().step < step.step) pending.pop_front();
  if (pending.empty() || pending.front().step != step.step) return;
  const PendingHealth one = std::move(pending.front());
  pending.pop_front();
  const auto weights = ExponentCounter::read(one.weights);
  const auto activations = ExponentCounter::read(*one.activations);
  const auto ratios = read_ratios(one.squares);
  StepHealth health{.epoch = one.epoch,
                    .step = one.step,
                    .loss_scale = step.loss_scale,
                    .grad_norm = step.grad_norm,
                    .skipped = step.skipped,
                    .layers = {}};
  const auto& layers = one.layers->all();
  for (std::size_t i = 0; i < layers.size(); ++i)
    health.layers.push_back(
        {layers[i].name, weights[i], activations[i], i < ratios.size() ? ratios[i] : std::nullopt});
  impl_->report(health);
}

}  // namespace demi::monitor

#include "demi/monitor/monitor.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "demi/core/error.h"
#include "demi/monitor/activation_hooks.h"
#include "demi/monitor/layers.h"
#include "demi/optim/export_fp32.h"
#include "demi/optim/optimizer.h"

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

/// The numbers that the optimizers train: a master, not its rounding.
at::Tensor trained(const loop::StepView& view, const at::Tensor& parameter) {
  for (const auto* optimizer : view.optimizers) {
    const at::Tensor fp32 = optim::fp32_weight(*optimizer, parameter);
    if (fp32.defined()) return sampled(fp32);
  }
  return sampled(parameter);
}

/// Whether an unchanged weight shows nothing about its update: it is rounded by chance, or another
/// process has the numbers that it is rounded from.
bool hides_updates(const loop::StepView& view, const at::Tensor& parameter) {
  if (parameter.scalar_type() != at::kBFloat16 && parameter.scalar_type() != at::kHalf)
    return false;
  return std::ranges::any_of(view.optimizers, [&](const auto* optimizer) {
    const auto* own = dynamic_cast<const optim::Optimizer*>(optimizer);
    if (!own) return false;
    const bool has_state = own->state().count(parameter.unsafeGetTensorImpl()) != 0;
    return (own->weight_mode() == optim::WeightMode::stochastic && has_state) ||
           !own->keeps_state_of(parameter);
  });
}

// A sample of a parameter before the step, and where it has a gradient other than 0.
struct Before {
  at::Tensor weights, has_gradient;
};

Before before_step(const loop::StepView& view, const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  const bool is_dense = gradient.layout() == at::kStrided;
  return {.weights = trained(view, parameter).clone(),
          .has_gradient = is_dense ? sampled(gradient) != 0 : at::Tensor()};
}

at::Tensor square_norm(const at::Tensor& x) {
  return at::linalg_vector_norm(x, 2, {}, false, c10::kDouble).square();
}

int nearest_exponent(double scale) { return static_cast<int>(std::lround(std::log2(scale))); }

// What the device has counted of a step that is not read yet.
struct PendingHealth {
  std::int64_t epoch = 1, step = 1;
  bool stepped = false;
  std::shared_ptr<const Layers> layers;
  std::vector<ExponentCounter> weights;
  std::shared_ptr<std::vector<ExponentCounter>> activations;
  // Samples of each layer's parameters; undefined for those without a gradient.
  std::vector<std::vector<Before>> before;
  std::vector<at::Tensor> sums;  // of each layer: fp64, (4), the fields of Sums
};

// Squares of the change and of the parameters; elements with a gradient that stayed, and in all.
// Samples count for all of their parameter.
struct Sums {
  double change, weights, stayed, asked;
};

// Reads the sums with one copy from each device; a layer without a trained parameter has none.
std::vector<std::optional<Sums>> read_sums(const std::vector<at::Tensor>& sums) {
  std::vector<at::Tensor> here;
  for (const at::Tensor& one : sums)
    if (one.defined()) here.push_back(here.empty() ? one : one.to(here.front().device()));
  std::vector<std::optional<Sums>> all(sums.size());
  if (here.empty()) return all;
  const at::Tensor read = at::stack(here).cpu();
  const double* next = read.const_data_ptr<double>();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!sums[i].defined()) continue;
    all[i] = {next[0], next[1], next[2], next[3]};
    next += 4;
  }
  return all;
}

// Sums over the sampled elements of a parameter, scaled to all of it: fp64, (4).
at::Tensor sums_of(const loop::StepView& view, const Before& before, const at::Tensor& parameter) {
  const at::Tensor after = trained(view, parameter);
  const at::Tensor none = at::zeros({}, after.options().dtype(at::kDouble));
  const at::Tensor asked = hides_updates(view, parameter) ? at::Tensor() : before.has_gradient;
  const at::Tensor stayed = asked.defined() ? asked.logical_and(after == before.weights) : asked;
  const auto count = [&](const at::Tensor& of) {
    return of.defined() ? of.sum(at::kDouble) : none;
  };
  const double share = double(after.numel()) / double(std::max<std::int64_t>(1, parameter.numel()));
  return at::stack({square_norm(after - before.weights), square_norm(before.weights), count(stayed),
                    count(asked)}) /
         (share > 0 ? share : 1);
}

}  // namespace

struct Monitor::Impl {
  std::int64_t every;
  Report report;
  std::unique_ptr<ActivationHooks> hooks;
  std::deque<PendingHealth> pending;

  bool is_due(std::int64_t step) const { return (step - 1) % every == 0; }
  bool is_due(const loop::StepView& view) const { return is_due(view.step); }
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

NarrowShares narrow_shares(const StepHealth& step, ExponentHistogram LayerHealth::*gradients) {
  std::int64_t all = 0, e4m3 = 0, e5m2 = 0, e2m1 = 0;
  for (const LayerHealth& layer : step.layers) {
    const ExponentHistogram& counts = layer.*gradients;
    all += counts.elements();
    int greatest = ExponentHistogram::kHighest;
    while (greatest > ExponentHistogram::kLowest && counts.from(greatest) == 0) --greatest;
    e4m3 += counts.below(greatest - 19);
    e5m2 += counts.below(greatest - 33);
    e2m1 += counts.below(greatest - 5);
  }
  const auto share = [&](std::int64_t n) {
    return all == 0 ? 0 : static_cast<double>(n) / static_cast<double>(all);
  };
  return {.e4m3 = share(e4m3), .e5m2 = share(e5m2), .e2m1 = share(e2m1)};
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

bool Monitor::needs_step(std::int64_t step) { return impl_->is_due(step); }

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
      // Weights are kept once a step, when backward has first reached the parameter.
      if (p.grad().defined() && !kept[k].weights.defined()) kept[k] = before_step(view, p);
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
    at::Tensor sums;
    for (std::size_t k = 0; k < layers[i].parameters.size(); ++k) {
      const Before& before = one.before[i][k];
      if (!before.weights.defined()) continue;
      const at::Tensor more = sums_of(view, before, layers[i].parameters[k]);
      sums = sums.defined() ? sums + more : more;
    }
    one.sums.push_back(sums);
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
  const auto sums = read_sums(one.sums);
  StepHealth health{.epoch = one.epoch,
                    .step = one.step,
                    .loss_scale = step.loss_scale,
                    .grad_norm = step.grad_norm,
                    .skipped = step.skipped,
                    .layers = {}};
  const auto& layers = one.layers->all();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerHealth layer{layers[i].name, weights[i], activations[i], std::nullopt, std::nullopt};
    if (i < sums.size() && sums[i]) {
      if (sums[i]->weights != 0) layer.update_ratio = std::sqrt(sums[i]->change / sums[i]->weights);
      if (sums[i]->asked > 0 && !step.skipped) layer.unchanged = sums[i]->stayed / sums[i]->asked;
    }
    health.layers.push_back(std::move(layer));
  }
  impl_->report(health);
}

}  // namespace demi::monitor

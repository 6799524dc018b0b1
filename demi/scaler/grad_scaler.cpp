#include "demi/scaler/grad_scaler.h"

#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>

#include "demi/core/error.h"
#include "demi/optim/gradients.h"
#include "demi/optim/optimizer.h"
#include "demi/optim/streams.h"
#include "demi/optim/table_kernels.h"
#include "demi/scaler/closure_step.h"
#include "demi/scaler/device_scale.h"
#include "demi/scaler/seen_gradients.h"
#include "demi/scaler/skip_watch.h"

namespace demi {
namespace {

enum class Stage { kReady, kUnscaled, kStepped };

/// What is known of one optimizer since the last update.
struct Looked {
  Stage stage = Stage::kReady;
  bool in_place = false;                // fp32 gradients were divided
  bool is_own = false;                  // one of demi's
  std::weak_ptr<optim::Optimizer> own;  // as long as that lives
  optim::FoundInf found = optim::no_devices();
  at::Tensor amax;       // fp32, (), of the unscaled gradients; ScaleMode::kAmax
  at::Tensor grad_norm;  // fp32, ()
  SeenGradients gradients;
};

/// Ends a closure step from inside the optimizer.
struct Overflow {};

/// Waits for the flag's device.
bool is_set(const at::Tensor& flag) {
  const bool here = !optim::is_asynchronous(flag.device());
  return (here ? *flag.const_data_ptr<float>() : flag.item<float>()) != 0;
}

bool any(const optim::FoundInf& found) {
  bool overflow = false;
  for (const auto& [device, flag] : found) overflow |= is_set(flag);
  return overflow;
}

at::Tensor joined(const optim::FoundInf& found, c10::Device device) {
  at::Tensor all;
  for (const auto& [from, flag] : found)
    all = all.defined() ? at::maximum(all, flag.to(device)) : flag.to(device);
  return all;
}

[[noreturn]] void refuse(const char* where, const char* what, const char* advice) {
  throw UsageError({.where = where, .what = what, .advice = advice});
}

}  // namespace

struct GradScaler::Impl {
  GradScalerOptions options;
  ScaleState first;  // until the device is known
  DeviceScale scale;
  std::unordered_map<torch::optim::Optimizer*, Looked> looked;
  SkipWatch watch;
  bool warned = false;

  ScaleState state() const { return scale.exists() ? scale.read() : first; }
  void set_state(const ScaleState& state) {
    first = state;
    if (scale.exists()) scale.write(state);
  }
  Looked& of(torch::optim::Optimizer& optimizer);
  void require_scale(const char* where) const;
  void look(torch::optim::Optimizer& optimizer, Looked& at, bool in_place);
  void look_at_own(optim::Optimizer& optimizer, Looked& at, bool in_place);
  void look_at_foreign(torch::optim::Optimizer& optimizer, Looked& at);
  void look_again(torch::optim::Optimizer& optimizer, Looked& at);
  void end_looks();
  void refuse_second_division(torch::optim::Optimizer& optimizer, bool in_place) const;
  StepResult result(torch::optim::Optimizer& optimizer, const Looked& at, bool skipped,
                    at::Tensor loss) const;
  StepResult finish(torch::optim::Optimizer& optimizer, Looked& at, const at::Tensor& together);
  void advance(const optim::FoundInf& found, const at::Tensor& amax);
  void warn_of_skips();
};

/// Not what was seen of a demi optimizer that has gone, and whose address this one has.
Looked& GradScaler::Impl::of(torch::optim::Optimizer& optimizer) {
  Looked& at = looked[&optimizer];
  if (at.is_own && at.own.expired()) at = {};
  return at;
}

void GradScaler::Impl::require_scale(const char* where) const {
  if (scale.exists()) return;
  refuse(where, "no scale yet, because scale(loss) has not been called",
         "call scale(loss).backward() earlier in the iteration");
}

/// A demi optimizer's step unscales by itself; only an unscale_ that the user asks for shows in
/// .grad.
void GradScaler::Impl::look_at_own(optim::Optimizer& optimizer, Looked& at, bool in_place) {
  at.stage = Stage::kUnscaled;
  at.in_place = in_place;
  at.is_own = true;
  at.own = optimizer.watch();
  if (!optimizer.has_gradients()) return;
  in_place ? optimizer.unscale_(scale.tensor()) : optimizer.set_scale(scale.tensor());
  const at::Tensor found = optimizer.found_inf();
  at.found[found.device()] = found;
  if (options.mode == ScaleMode::kAmax) at.amax = optimizer.greatest();
}

/// Between unscale_() and the step gradients may have been written to. What unscale_() found stays
/// found, as in PyTorch; what was spoiled since then counts too, for the step and for the scale.
/// Other optimizers read their gradients once.
void GradScaler::Impl::look_again(torch::optim::Optimizer& optimizer, Looked& at) {
  auto* own = dynamic_cast<optim::Optimizer*>(&optimizer);
  if (!own || at.found.empty() || !own->has_gradients()) return;
  // The optimizer forgets the scale with gradients that were replaced.
  const at::Tensor now = own->found_inf_under(scale.tensor(), at.in_place);
  at::Tensor& seen = at.found[now.device()];
  const bool waits = optim::is_asynchronous(now.device());
  if (seen.defined() &&
      (waits ? seen.const_data_ptr() == now.const_data_ptr() : is_set(seen) == is_set(now)))
    return;
  seen = seen.defined() ? at::maximum(seen, now) : now;
  own->skip_if(seen);
}

/// Without a step demi's optimizers still hold what was recorded for it.
void GradScaler::Impl::end_looks() {
  for (auto& [optimizer, at] : looked)
    if (const auto own = at.stage == Stage::kUnscaled ? at.own.lock() : nullptr) own->end_look();
  looked.clear();
}

/// A parameter of two optimizers, of which one divides .grad in place.
void GradScaler::Impl::refuse_second_division(torch::optim::Optimizer& optimizer,
                                              bool in_place) const {
  if (looked.size() < 2) return;
  const SeenGradients now(optimizer, in_place);
  for (const auto& [other, at] : looked)
    if (other != &optimizer &&
        at.gradients.would_be_divided_again(now, at.stage == Stage::kUnscaled))
      refuse(
          "scaler.unscale_",
          "a parameter belongs to two optimizers, and its gradient would be divided by the scale "
          "for each of them",
          "give each parameter to one optimizer, or compute new gradients before the second");
}

void GradScaler::Impl::look(torch::optim::Optimizer& optimizer, Looked& at, bool in_place) {
  refuse_second_division(optimizer, in_place);
  if (auto* own = dynamic_cast<optim::Optimizer*>(&optimizer))
    look_at_own(*own, at, in_place);
  else
    look_at_foreign(optimizer, at);
  at.gradients = SeenGradients(optimizer, in_place);
}

void GradScaler::Impl::look_at_foreign(torch::optim::Optimizer& optimizer, Looked& at) {
  const auto gradients = optim::gradient_values(optimizer);
  const at::Tensor inverse = scale.inverse();
  if (options.mode == ScaleMode::kAmax) at.amax = optim::greatest_magnitude(gradients) * inverse;
  at.found = optim::unscale_and_check(gradients, inverse);
  if (options.record_grad_norm) at.grad_norm = optim::total_norm(gradients);
  at.stage = Stage::kUnscaled;
}

StepResult GradScaler::Impl::result(torch::optim::Optimizer& optimizer, const Looked& at,
                                    bool skipped, at::Tensor loss) const {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  if (!scale.is_on_device()) {
    const StepResult::Numbers numbers{
        .found_inf = skipped ? 1.0F : 0.0F,
        .grad_norm = at.grad_norm.defined() ? at.grad_norm.item<float>() : kNone,
        .scale = scale.read().scale};
    return {&optimizer, numbers, std::move(loss)};
  }
  const at::Tensor& s = scale.tensor();
  const at::Tensor norm =
      at.grad_norm.defined() ? at.grad_norm.to(s.device()) : at::full_like(s, kNone);
  return {&optimizer, at::stack({at::full_like(s, skipped ? 1 : 0), norm, s}), std::move(loss),
          optim::ordered_stream(s.device())};
}

/// `together`: the overflow flag of several optimizers, or undefined.
StepResult GradScaler::Impl::finish(torch::optim::Optimizer& optimizer, Looked& at,
                                    const at::Tensor& together) {
  at.stage = Stage::kStepped;
  if (auto* own = dynamic_cast<optim::Optimizer*>(&optimizer)) {
    if (together.defined()) own->skip_if(together);
    own->step();
    return own->last_step();
  }
  const bool skip = together.defined() ? together.item<float>() != 0 : any(at.found);
  if (!skip) optimizer.step();
  return result(optimizer, at, skip, {});
}

/// The scale rule, wherever the scale is.
void GradScaler::Impl::advance(const optim::FoundInf& found, const at::Tensor& amax) {
  if (scale.is_on_device()) {
    const at::Tensor flag = joined(found, scale.tensor().device());
    scale.advance(flag, amax, options);
    watch.count(flag, scale.tensor());
  } else {
    const bool overflow = any(found);
    const float greatest = amax.defined() ? amax.item<float>() : 0;
    scale.advance(ScaleInput{.found_inf = overflow, .amax = greatest}, options);
    watch.count(overflow, scale.read().scale);
  }
  warn_of_skips();
}

/// One warning for each run of skipped steps; where a device decides, some steps late.
void GradScaler::Impl::warn_of_skips() {
  const SkipWatch::Seen seen = watch.seen();
  const bool many = options.warn_after_skips > 0 && seen.skips_in_a_row >= options.warn_after_skips;
  if (many && !warned)
    TORCH_WARN("[scaler.GradScaler] ", seen.skips_in_a_row,
               " steps in a row were skipped, because their gradients held Inf or NaN;",
               " the scale is now ", seen.scale,
               ". With a scale that small the cause is hardly the scale: look for a loss that is "
               "NaN or Inf without scaling, a",
               " division or log of 0, a learning rate that is too high, or inputs that are not "
               "finite.");
  warned = many;
}

GradScaler::GradScaler(GradScalerOptions options) : impl_(std::make_unique<Impl>()) {
  if (options.enabled) check(options);
  impl_->options = options;
  impl_->first = first_state(options);
}
GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!is_enabled()) return output;
  if (!output.defined())
    refuse("scaler.scale", "an output is undefined",
           "hand over the loss, or the outputs that backward starts from");
  auto& scale = impl_->scale;
  if (!scale.exists())
    scale.create(output.device(), impl_->first, impl_->options,
                 optim::is_asynchronous(output.device()));
  scale.keep_if_captured();
  const bool narrow = output.scalar_type() == at::kHalf || output.scalar_type() == at::kBFloat16;
  return (narrow ? output.to(at::kFloat) : output) * scale.tensor().to(output.device());
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const auto& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  constexpr auto kWhere = "scaler.unscale_";
  impl_->require_scale(kWhere);
  Looked& at = impl_->of(optimizer);
  if (at.stage == Stage::kUnscaled)
    refuse(kWhere, "unscale_() has already been called on this optimizer since the last update()",
           "call it once a step");
  if (at.stage == Stage::kStepped)
    refuse(kWhere, "unscale_() is being called after step()",
           "call it between backward() and step()");
  impl_->look(optimizer, at, /*in_place=*/true);
}

StepResult GradScaler::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  if (!is_enabled()) {
    at::Tensor loss = optimizer.step(closure);
    if (auto* mine = dynamic_cast<optim::Optimizer*>(&optimizer)) return mine->last_step();
    return {&optimizer, StepResult::Numbers{.grad_norm = std::numeric_limits<float>::quiet_NaN()},
            loss};
  }
  const bool own = dynamic_cast<optim::Optimizer*>(&optimizer) != nullptr;
  if (closure && own) {
    const at::AutoGradMode enable_grad(true);
    const at::Tensor loss = closure();
    return step(optimizer).with_loss(loss);
  }
  if (closure) return step_with_closure(optimizer, closure);
  return std::move(step(std::vector<torch::optim::Optimizer*>{&optimizer}).front());
}

std::vector<StepResult> GradScaler::step(const std::vector<torch::optim::Optimizer*>& optimizers) {
  constexpr auto kWhere = "scaler.step";
  for (auto one = optimizers.begin(); one != optimizers.end(); ++one) {
    if (!*one) refuse(kWhere, "an optimizer is null", "name optimizers that are there");
    if (std::find(optimizers.begin(), one, *one) != one)
      refuse(kWhere, "an optimizer is there twice", "name each optimizer once");
  }
  std::vector<StepResult> results;
  if (!is_enabled()) {
    for (auto* optimizer : optimizers) results.push_back(step(*optimizer));
    return results;
  }
  impl_->require_scale(kWhere);
  for (auto* optimizer : optimizers) {
    if (impl_->of(*optimizer).stage == Stage::kStepped)
      refuse(kWhere, "step() has already been called since the last update()",
             "call update() once a step, after all optimizers");
  }
  at::Tensor together;
  for (auto* optimizer : optimizers) {
    Looked& at = impl_->looked[optimizer];
    if (at.stage == Stage::kReady)
      impl_->look(*optimizer, at, /*in_place=*/false);
    else
      impl_->look_again(*optimizer, at);
    if (at.found.empty())
      refuse(
          kWhere,
          "no Inf checks were recorded for this optimizer: none of its parameters has a gradient",
          "call scale(loss).backward() first");
    if (optimizers.size() == 1) continue;
    const at::Tensor found = joined(at.found, impl_->scale.tensor().device());
    together = together.defined() ? at::maximum(together, found) : found;
  }
  for (auto* optimizer : optimizers)
    results.push_back(impl_->finish(*optimizer, impl_->looked[optimizer], together));
  return results;
}

StepResult GradScaler::step_with_closure(torch::optim::Optimizer& optimizer,
                                         const LossClosure& closure) {
  constexpr auto kWhere = "scaler.step";
  Looked& at = impl_->of(optimizer);
  if (at.stage == Stage::kStepped)
    refuse(kWhere, "step() has already been called since the last update()",
           "call update() once a step, after all optimizers");
  OptimizerSnapshot before(optimizer);
  at::Tensor loss;
  bool skipped = false;
  const auto unscaled_closure = [&] {
    at.stage = Stage::kReady;  // each call makes new gradients
    at::Tensor value = closure();
    impl_->require_scale(kWhere);
    if (at.stage == Stage::kReady) impl_->look(optimizer, at, /*in_place=*/true);
    if (any(at.found)) throw Overflow{};
    return value;
  };
  try {
    loss = optimizer.step(unscaled_closure);
  } catch (const Overflow&) {
    before.restore();
    skipped = true;
  }
  at.stage = Stage::kStepped;
  return impl_->result(optimizer, at, skipped, loss);
}

void GradScaler::update() {
  if (!is_enabled()) return;
  constexpr auto kWhere = "scaler.update";
  auto& impl = *impl_;
  impl.require_scale(kWhere);
  optim::FoundInf found = optim::no_devices();
  at::Tensor amax;
  const auto device = impl.scale.tensor().device();
  for (auto& [optimizer, at] : impl.looked) {
    for (const auto& [from, flag] : at.found) {
      auto& all = found[from];
      all = all.defined() ? at::maximum(all, flag) : flag;
    }
    if (at.amax.defined())
      amax = amax.defined() ? at::maximum(amax, at.amax.to(device)) : at.amax.to(device);
  }
  if (found.empty())
    refuse(kWhere, "no Inf checks were recorded prior to update", "call step(optimizer) first");
  impl.advance(found, amax);
  impl.end_looks();
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  impl_->require_scale("scaler.update");
  GradScalerOptions wanted = impl_->options;
  wanted.init_scale = new_scale;
  wanted.min_scale = 0;
  wanted.max_scale = std::numeric_limits<double>::infinity();
  check(wanted);
  ScaleState state = impl_->state();
  state.scale = static_cast<float>(new_scale);
  impl_->set_state(state);
  impl_->end_looks();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) return;
  if (!new_scale.defined() || new_scale.numel() != 1 || new_scale.scalar_type() != at::kFloat ||
      new_scale.requires_grad())
    throw UsageError(
        {.where = "scaler.update",
         .what = "new_scale is not a scale",
         .seen = new_scale.defined() ? new_scale.toString() : std::string("undefined"),
         .accepted = "a number, or an fp32 tensor of one element that does not require grad"});
  update(new_scale.item<double>());
}

float GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0F;
  const float scale = impl_->state().scale;  // waits: what the device has counted is here now
  impl_->warn_of_skips();
  return scale;
}
int64_t GradScaler::get_growth_tracker() const {
  return is_enabled() ? impl_->state().growth_tracker : 0;
}
double GradScaler::get_growth_factor() const { return impl_->options.growth_factor; }
double GradScaler::get_backoff_factor() const { return impl_->options.backoff_factor; }
int64_t GradScaler::get_growth_interval() const { return impl_->options.growth_interval; }
bool GradScaler::is_enabled() const { return impl_->options.enabled; }
const GradScalerOptions& GradScaler::options() const { return impl_->options; }

namespace {

/// `options` with one change, checked before it counts.
template <typename Change>
void change(GradScalerOptions& options, const Change& apply) {
  GradScalerOptions wanted = options;
  apply(wanted);
  if (options.enabled) check(wanted);
  options = wanted;
}

}  // namespace

void GradScaler::set_growth_factor(double factor) {
  change(impl_->options, [&](auto& options) { options.growth_factor = factor; });
}
void GradScaler::set_backoff_factor(double factor) {
  change(impl_->options, [&](auto& options) { options.backoff_factor = factor; });
}
void GradScaler::set_growth_interval(int64_t interval) {
  change(impl_->options, [&](auto& options) { options.growth_interval = interval; });
}

StateDict GradScaler::state_dict() const {
  if (!is_enabled()) return {};
  const ScaleState state = impl_->state();
  const GradScalerOptions& options = impl_->options;
  StateDict dict{{"scale", state.scale},
                 {"growth_factor", options.growth_factor},
                 {"backoff_factor", options.backoff_factor},
                 {"growth_interval", static_cast<double>(options.growth_interval)},
                 {"_growth_tracker", state.growth_tracker}};
  if (options.hysteresis > 1) dict["_hysteresis_tracker"] = state.hysteresis_tracker;
  for (size_t i = 0; i < state.amax_history.size(); ++i)
    dict["_amax_history." + std::to_string(i)] = state.amax_history[i];
  return dict;
}

namespace {

double require_state(const StateDict& dict, const std::string& key, double greatest) {
  const double value = state_value(dict, key, "scaler.load_state_dict");
  if (!(value >= 0 && value <= greatest))
    throw UsageError({.where = "scaler.load_state_dict",
                      .what = key + " is out of range",
                      .seen = std::to_string(value),
                      .accepted = "0 or more"});
  return value;
}

int32_t count_in(const StateDict& dict, const char* key) {
  return static_cast<int32_t>(
      state_count(dict, key, "scaler.load_state_dict", std::numeric_limits<int32_t>::max()));
}

std::vector<float> history_in(const StateDict& dict) {
  std::vector<float> history;
  for (std::string key = "_amax_history.0"; dict.contains(key);
       key = "_amax_history." + std::to_string(history.size()))
    history.push_back(
        static_cast<float>(require_state(dict, key, std::numeric_limits<float>::max())));
  return history;
}

}  // namespace

void GradScaler::load_state_dict(const StateDict& dict) {
  if (!is_enabled()) return;
  constexpr auto kWhere = "scaler.load_state_dict";
  if (dict.empty())
    refuse(kWhere,
           "the source state dict is empty, possibly because it was saved from a disabled instance "
           "of GradScaler",
           "load it only where it was enabled, or start with a fresh scale");
  ScaleState state = impl_->state();
  const double scale = state_value(dict, "scale", kWhere);
  change(impl_->options, [&](GradScalerOptions& options) {
    options.growth_factor = state_value(dict, "growth_factor", kWhere);
    options.backoff_factor = state_value(dict, "backoff_factor", kWhere);
    options.growth_interval = count_in(dict, "growth_interval");
    state.growth_tracker = count_in(dict, "_growth_tracker");
    GradScalerOptions limits = options;
    limits.init_scale = scale;
    limits.min_scale = std::min(options.min_scale, scale);
    limits.max_scale = std::max(options.max_scale, scale);
    check(limits);
    if (dict.contains("_hysteresis_tracker"))
      state.hysteresis_tracker = count_in(dict, "_hysteresis_tracker");
    state.amax_history = history_in(dict);
  });
  state.scale = static_cast<float>(scale);
  impl_->set_state(state);
}

}  // namespace demi

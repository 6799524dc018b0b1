#include "demi/loop/step.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "demi/autocast/backward.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/loop/open_steps.h"
#include "demi/loop/recorder.h"
#include "demi/loop/region.h"
#include "demi/loop/run_setting.h"
#include "demi/loop/step_checks.h"
#include "demi/loop/turns.h"
#include "demi/optim/batch_norm_guard.h"
#include "demi/optim/clip.h"
#include "demi/optim/optimizer.h"
#include "demi/step/pending_step.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/module_tensors.h"
#include "demi/tensor/replaced_parameter.h"

namespace demi::loop {
namespace {

using profile::Phase;
using torch::optim::Optimizer;

std::vector<at::Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

using Tensors = std::unordered_set<const at::TensorImpl*>;

Tensors parameters_of(const torch::nn::Module& module) {
  Tensors all;
  for (const at::Tensor& parameter : module.parameters())
    all.insert(parameter.unsafeGetTensorImpl());
  return all;
}

bool holds_one_of(const Optimizer& optimizer, const Tensors& tensors) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (tensors.contains(parameter.unsafeGetTensorImpl())) return true;
  return false;
}

at::Tensor sum_of(const std::vector<at::Tensor>& losses) {
  at::Tensor sum;
  for (const at::Tensor& loss : losses) sum = sum.defined() ? sum + loss.to(sum.device()) : loss;
  return sum;
}

// While it lives, backward sends nothing.
using NoSync = distributed::DistributedDataParallel::NoSync;
std::vector<std::unique_ptr<NoSync>> hold(
    const std::vector<distributed::DistributedDataParallel*>& parallel) {
  std::vector<std::unique_ptr<NoSync>> all;
  for (auto* one : parallel)
    // It is made where it stays, for it cannot be moved. NOLINTNEXTLINE(modernize-make-unique)
    if (one) all.push_back(std::unique_ptr<NoSync>(new NoSync(one->no_sync())));
  return all;
}

}  // namespace

struct Step::Impl final : tensor::ReplacementObserver {
  // What the step is made of.
  const Job job;
  const Options options;
  GradScaler disabled{GradScalerOptions{.enabled = false}};
  RunSetting run;
  std::shared_ptr<torch::nn::Module> module;
  std::vector<Tensors> parameters;     // of each model
  std::vector<BatchNormGuard> guards;  // of each model, or none
  std::vector<std::shared_ptr<StepObserver>> observers;
  profile::PhaseTimer timer;
  std::optional<Claim> claim;
  std::optional<LowPrecisionGrads> low_precision;
  bool has_norm_limit = false;  // one of several optimizers has

  // The step that has begun.
  Turns turns;
  at::Tensor last_loss;
  int64_t epoch = 1;

  int64_t steps = 0;
  std::optional<Recorder> recorder;

  Impl(Job of, const Options& with);
  ~Impl() override;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void require_replaceable(const tensor::Replacement& replacement) const override;
  void replace(const tensor::Replacement& replacement) override;

  // Of its parameters and buffers in `module`.
  std::string prefix_of(std::size_t model) const {
    return job.models.size() == 1 ? "" : job.models[model].name + ".";
  }
  bool records() const { return options.read_every > 0 && !observers.empty(); }
  std::vector<at::Tensor> losses_of(const Program& program, const RepeatOptions& how,
                                    profile::PhaseTimer& times);
  void send_back(std::vector<at::Tensor>& losses, const MicroBatch& batch, bool sends,
                 const RepeatOptions& how, profile::PhaseTimer& times);
  at::Tensor loss_of_gradients(const at::Tensor& loss, const MicroBatch& batch) const;
  at::Tensor repeat(const Program& program, const MicroBatch& batch, const RepeatOptions& how);
  std::vector<distributed::DistributedDataParallel*> senders(const MicroBatch& how) const;
  void begin(const MicroBatch& how);
  bool holds_batch(const distributed::DistributedDataParallel* of, const MicroBatch& how) const;
  void end_turn(Optimizer& one);
  StepView view(const std::vector<NamedInput>& inputs, bool ends_step);
  // One may add another.
  template <class Call>
  void each_observer(const Call& call) {
    for (std::size_t i = 0; i < observers.size(); ++i) call(*observers[i]);
  }
  void tell_update(std::vector<StepResult> results);
  template <class Do>
  auto or_drop(const Do& what) {
    try {
      return what();
    } catch (...) {
      drop();
      throw;
    }
  }
  bool clips() const { return options.clip_norm > 0 || options.clip_value > 0; }
  void decide_by_norm();
  StepResult step_of(Optimizer& one, bool unscaled = false);
  void put_statistics_back();
  std::vector<StepResult> finish();
  void forget();
  void drop();
  void read();
};

Step::Impl::Impl(Job of, const Options& with)
    : job(std::move(of)),
      options(with),
      run{.precision = with.precision.value_or(global_precision()),
          .op_policy = with.op_policy,
          .scaler = job.scaler ? job.scaler : &disabled},
      module(job.module()),
      timer(with.device, with.synchronise_phases),
      turns(job.optimizers, with.accumulate),
      steps(with.steps_taken) {
  require_libtorch();
  check(options);
  check(job);
  claim.emplace(job);
  recorder.emplace(timer, *run.scaler, *job.optimizers.front());
  for (const NamedModel& model : job.models) {
    parameters.push_back(parameters_of(*model.module));
    for (const at::Tensor& parameter : model.module->parameters()) observe(parameter);
  }
  for (const at::Tensor& parameter : job.more) observe(parameter);
  if (!run.precision.is_mixed() && run.precision.weights != c10::kFloat)
    for (const NamedModel& model : job.models)
      to_precision(*model.module, run.precision.weights, /*keep_normalisation_fp32=*/false);
  if (options.guard_statistics)
    for (const NamedModel& model : job.models) guards.emplace_back(*model.module);
  if (options.low_precision_grads) low_precision.emplace(job.optimizers);
  for (Optimizer* one : job.optimizers)
    if (auto* own = dynamic_cast<optim::Optimizer*>(one); own && job.optimizers.size() > 1)
      has_norm_limit |= own->pending().has_norm_limit();
}

Step::Impl::~Impl() { drop(); }

void Step::Impl::require_replaceable(const tensor::Replacement& replacement) const {
  if (claim->is_open())
    refuse({.where = kStep,
            .what = "a parameter is replaced within a step",
            .seen = "a batch since the last finish()",
            .accepted = "between two steps, and in StepObserver::after_update",
            .advice = "call finish() or drop() before"});
  const auto* old = replacement.old.unsafeGetTensorImpl();
  const auto* by = replacement.by.unsafeGetTensorImpl();
  for (std::size_t m = 0; m < parameters.size(); ++m)
    if (parameters[m].contains(old) && !parameters_of(*job.models[m].module).contains(by))
      refuse({.where = kStep,
              .what = "the model does not have the parameter that stands in another one's place",
              .seen = c10::str("shape ", replacement.by.sizes()),
              .accepted = "a parameter of the model",
              .advice = "register it first, and assign the module's member"});
}

void Step::Impl::replace(const tensor::Replacement& replacement) {
  for (Tensors& of_model : parameters)
    if (of_model.erase(replacement.old.unsafeGetTensorImpl()) > 0)
      of_model.insert(replacement.by.unsafeGetTensorImpl());
}

std::vector<at::Tensor> Step::Impl::losses_of(const Program& program, const RepeatOptions& how,
                                              profile::PhaseTimer& times) {
  times.enter(Phase::forward);
  std::vector<at::Tensor> losses;
  at::Tensor output;
  {
    const Autocast region = region_of(run.precision, options.device, run.op_policy);
    if (program.losses)
      losses = (*program.losses)();
    else
      output = (*program.forward)();
  }
  if (!program.losses) {
    if (how.after_forward) how.after_forward(output);
    times.enter(Phase::loss);
    if (output.defined() && tensor::is_16_bit(output.scalar_type()))
      output = output.to(c10::kFloat);
    losses = {(*program.loss)(output)};
  }
  check_losses(losses);
  return losses;
}

// Of the models that get gradients.
std::vector<distributed::DistributedDataParallel*> Step::Impl::senders(
    const MicroBatch& how) const {
  std::vector<distributed::DistributedDataParallel*> all;
  const std::vector<Optimizer*> of = turns.receivers(how);
  for (std::size_t m = 0; m < job.parallel.size(); ++m) {
    const bool reached =
        !turns.is_of_some(how) || std::ranges::any_of(of, [&](const Optimizer* one) {
          return holds_one_of(*one, parameters[m]);
        });
    if (job.parallel[m] && reached) all.push_back(job.parallel[m]);
  }
  return all;
}

// Backward of each loss, which is unscaled and without its graph after it. `sends`: the last one
// averages over the ranks.
void Step::Impl::send_back(std::vector<at::Tensor>& losses, const MicroBatch& batch, bool sends,
                           const RepeatOptions& how, profile::PhaseTimer& times) {
  times.enter(Phase::backward);
  std::vector<at::Tensor> inputs;
  if (turns.is_of_some(batch))
    for (const Optimizer* one : turns.receivers(batch))
      for (const at::Tensor& p : loop::parameters_of(*one))
        if (p.requires_grad()) inputs.push_back(p);
  std::vector<distributed::DistributedDataParallel*> parallel;
  std::vector<std::int64_t> rounds;
  if (sends && !job.parallel.empty()) {
    parallel = senders(batch);
    for (const auto* one : parallel) rounds.push_back(one->rounds());
  }
  // Buckets of several models fill in another order where a rank leaves a parameter out: they are
  // sent one model after the other.
  const bool sends_later = parallel.size() > 1;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    at::Tensor share =
        options.accumulate > 1 ? losses[i] / static_cast<double>(options.accumulate) : losses[i];
    if (batch.weight != 1) share = share * batch.weight;
    const at::Tensor scaled = run.scaler->scale(share);
    if (how.before_backward) how.before_backward(scaled);
    const bool is_last = i + 1 == losses.size();
    const auto held = sends && is_last && !sends_later ? std::vector<std::unique_ptr<NoSync>>()
                                                       : hold(job.parallel);
    demi::backward(scaled, {}, /*retain_graph=*/!is_last, /*create_graph=*/false, inputs);
  }
  // Or the last loss reached no parameter of the ranks.
  for (std::size_t i = 0; i < parallel.size(); ++i)
    if (sends_later || parallel[i]->rounds() == rounds[i]) parallel[i]->reduce();
  times.enter(Phase::other);
  for (at::Tensor& loss : losses) {
    loss = loss.detach();
    if (loss.dim() != 0) loss = loss.reshape({});
  }
}

// What the gradients are those of: an optimizer that decides by its loss takes the same turns on
// all ranks, whose gradients are averaged.
at::Tensor Step::Impl::loss_of_gradients(const at::Tensor& loss, const MicroBatch& batch) const {
  const at::Tensor share = loss * (batch.weight / static_cast<double>(options.accumulate));
  const auto parallel = job.parallel.empty() ? job.parallel : senders(batch);
  return parallel.empty() ? share : parallel.front()->average(share);
}

at::Tensor Step::Impl::repeat(const Program& program, const MicroBatch& batch,
                              const RepeatOptions& how) {
  const RepeatSetting setting(run, how);
  const distributed::LocalBatchNorm local;  // the other ranks do not repeat it
  profile::PhaseTimer times(options.device);
  std::vector<at::Tensor> losses = losses_of(program, how, times);
  send_back(losses, batch, /*sends=*/false, how, times);
  return sum_of(losses);
}

StepView Step::Impl::view(const std::vector<NamedInput>& inputs, bool ends_step) {
  return {.epoch = epoch,
          .step = steps + 1,
          .ends_step = ends_step,
          .module = *module,
          .optimizers = job.optimizers,
          .scaler = *run.scaler,
          .precision = run.precision,
          .inputs = inputs};
}

void Step::Impl::begin(const MicroBatch& how) {
  turns.check(how);
  check_weight(how.weight);
  epoch = how.epoch;
  if (claim->is_open()) return;
  claim->set_open(true);
  for (BatchNormGuard& guard : guards) guard.remember();
}

// Of what a rank that passes sends: whether a batch of its own has given gradients of that model.
bool Step::Impl::holds_batch(const distributed::DistributedDataParallel* of,
                             const MicroBatch& how) const {
  const auto m =
      static_cast<std::size_t>(std::ranges::find(job.parallel, of) - job.parallel.begin());
  return std::ranges::any_of(turns.receivers(how), [&](const Optimizer* one) {
    return turns.had_own_batch(turns.number_of(*one)) && holds_one_of(*one, parameters[m]);
  });
}

void Step::Impl::end_turn(Optimizer& one) {
  one.zero_grad();
  timer.enter(Phase::other);
}

// Of all that are taken now, before the first of them steps.
void Step::Impl::decide_by_norm() {
  std::vector<Optimizer*> all;
  for (const std::size_t i : turns.waiting()) all.push_back(job.optimizers[i]);
  timer.enter(Phase::unscale);
  if (clips())
    for (Optimizer* one : all) run.scaler->unscale_(*one);
  run.scaler->decide_by_norm(all);
}

StepResult Step::Impl::step_of(Optimizer& one, bool unscaled) {
  if (clips()) {
    timer.enter(Phase::unscale);
    if (!unscaled) run.scaler->unscale_(one);
    if (options.clip_value > 0)
      optim::clip_grad_value_(loop::parameters_of(one), options.clip_value);
    if (options.clip_norm > 0) optim::clip_grad_norm_(loop::parameters_of(one), options.clip_norm);
  }
  timer.enter(Phase::step);
  return run.scaler->step(one);
}

// Of a model whose optimizers have all skipped.
void Step::Impl::put_statistics_back() {
  for (std::size_t m = 0; m < guards.size(); ++m) {
    std::vector<StepResult> of_model;
    for (std::size_t i = 0; i < job.optimizers.size(); ++i)
      if (turns.result_of(i) && holds_one_of(*job.optimizers[i], parameters[m]))
        of_model.push_back(*turns.result_of(i));
    if (!of_model.empty()) guards[m].restore_if_skipped(of_model);
  }
}

std::vector<StepResult> Step::Impl::finish() {
  if (!turns.had_batch())
    refuse({.where = kStep,
            .what = "a step is finished without a batch",
            .seen = "none since the last step or exception",
            .accepted = "one batch or more",
            .advice = "call batch() before"});
  const double rate = job.optimizers.front()->param_groups().front().options().get_lr();
  or_drop([&] {
    if (has_norm_limit) decide_by_norm();
    for (const std::size_t i : turns.waiting())
      turns.take(i, step_of(*job.optimizers[i], /*unscaled=*/has_norm_limit));
  });
  ++steps;  // it is taken, whatever throws from here on
  put_statistics_back();
  std::vector<StepResult> results = turns.results();
  or_drop([&] {
    if (job.average) job.average->update(results);
    run.scaler->update();
  });
  const bool is_recorded = recorder->window().is_open();  // watched since before its batches
  if (is_recorded) recorder->close({.epoch = epoch, .step = steps, .learning_rate = rate}, results);
  forget();
  timer.enter(Phase::other);
  for (optim::lr::Scheduler* schedule : job.schedules) schedule->step();
  if (!observers.empty()) tell_update(results);
  if (is_recorded) recorder->count_seconds();
  if (options.read_every > 0 && recorder->unread() >= options.read_every) read();
  return results;
}

void Step::Impl::tell_update(std::vector<StepResult> results) {
  const std::vector<NamedInput> none;
  StepView seen = view(none, /*ends_step=*/true);
  seen.step = steps;
  seen.loss = std::exchange(last_loss, {});
  seen.results = std::move(results);
  seen.repeat = [](const RepeatOptions&) -> at::Tensor {
    refuse({.where = kStep,
            .what = "a batch is repeated after the update",
            .seen = "StepObserver::after_update",
            .accepted = "before_forward, after_forward, after_backward"});
  };
  each_observer([&](StepObserver& one) { one.after_update(seen); });
}

// The gradients and the records of the step.
void Step::Impl::forget() {
  for (Optimizer* one : job.optimizers) one->zero_grad();
  turns.forget();
  recorder->window() = {};
  claim->set_open(false);
}

void Step::Impl::drop() {
  if (!claim->is_open()) return;
  try {
    // What those that were taken have found counts.
    if (turns.is_any_taken())
      run.scaler->update();
    else
      run.scaler->load_state_dict(run.scaler->state_dict());  // forgets what unscale_ has found
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device is what has failed
  }
  if (!turns.is_any_taken())
    for (BatchNormGuard& guard : guards) guard.restore();
  last_loss.reset();
  forget();
}

void Step::Impl::read() {
  for (const ReadStep& step : recorder->read())
    each_observer([&](StepObserver& observer) { observer.on_step(step.metrics, 0); });
}

Step::Step(Job job, Options options) : impl_(std::make_unique<Impl>(std::move(job), options)) {}
Step::~Step() = default;
Step::Step(Step&&) noexcept = default;
Step& Step::operator=(Step&&) noexcept = default;

std::vector<at::Tensor> Step::run(const Program& program, const MicroBatch& how) try {
  Impl& step = *impl_;
  step.begin(how);
  const bool ends = step.turns.ends(how);
  std::vector<at::Tensor> losses;
  if (step.observers.empty()) {
    losses = step.losses_of(program, {}, step.timer);
    step.send_back(losses, how, ends, {}, step.timer);
  } else {
    StepView seen = step.view(how.inputs, ends);
    seen.repeat = [&](const RepeatOptions& again) { return step.repeat(program, how, again); };
    step.each_observer([&](StepObserver& one) { one.before_forward(seen); });
    const RepeatOptions told{.after_forward = [&](const at::Tensor& output) {
      step.each_observer([&](StepObserver& one) { one.after_forward(seen, output); });
    }};
    losses = step.losses_of(program, told, step.timer);
    step.send_back(losses, how, ends, told, step.timer);
    seen.loss = step.last_loss = sum_of(losses);
    step.each_observer([&](StepObserver& one) { one.after_backward(seen); });
    if (step.records()) step.recorder->window().sums.add({.loss = step.last_loss, .examples = 1});
  }
  step.turns.count(how, ends, /*is_own=*/true);
  return losses;
} catch (...) {
  impl_->drop();
  throw;
}

void Step::pass(const MicroBatch& how) {
  Impl& step = *impl_;
  step.or_drop([&] {
    step.begin(how);
    const bool ends = step.turns.ends(how);
    if (ends)
      for (auto* parallel : step.senders(how)) {
        if (step.holds_batch(parallel, how))
          parallel->reduce();  // of the step's batches that this rank had
        else
          parallel->join_once();
      }
    step.turns.count(how, ends, /*is_own=*/false);
    step.last_loss = at::zeros({});
    if (step.records()) step.recorder->window().sums.add({.loss = step.last_loss});
  });
}

std::vector<at::Tensor> Step::gradients(const at::Tensor& loss, const std::vector<at::Tensor>& of) {
  GradScaler& scaler = *impl_->run.scaler;
  const at::Tensor scale = scaler.scale(at::ones({}, loss.options().requires_grad(false)));
  auto gradients = torch::autograd::grad({scaler.scale(loss)}, of, {}, /*retain_graph=*/true,
                                         /*create_graph=*/true, /*allow_unused=*/true);
  for (at::Tensor& gradient : gradients)
    if (gradient.defined()) gradient = gradient.to(loss.scalar_type()) / scale;
  return gradients;
}

bool Step::is_due() const { return impl_->turns.is_due(); }

StepResult Step::take(Optimizer& one) {
  Impl& step = *impl_;
  const std::size_t i = step.turns.number_of(one);
  step.turns.require_not_taken(i);
  step.turns.require_batch(i);
  return step.or_drop([&] {
    StepResult result = step.step_of(one);
    step.turns.take(i, result);
    step.end_turn(one);
    return result;
  });
}

StepResult Step::take(Optimizer& one, const Forward& forward, const Loss& loss,
                      const MicroBatch& how) {
  Impl& step = *impl_;
  const std::size_t i = step.turns.number_of(one);
  step.turns.require_not_taken(i);
  if (step.options.clip_norm > 0 || step.options.clip_value > 0)
    refuse({.where = kStep,
            .what = "an optimizer that evaluates its loss several times is not clipped",
            .seen = "clip_norm or clip_value",
            .accepted = "0 (off)",
            .advice = "clip in a loop of your own"});
  MicroBatch each = how;
  each.of = {&one};
  each.last = true;
  return step.or_drop([&] {
    StepResult result = step.run.scaler->step(one, [&] {
      one.zero_grad();
      return step.loss_of_gradients(batch(forward, loss, each), each);
    });
    step.turns.take(i, result);
    step.turns.set_due();
    step.end_turn(one);
    return result;
  });
}

std::vector<StepResult> Step::finish() { return impl_->finish(); }
void Step::drop() { impl_->drop(); }
bool Step::is_open() const { return impl_->claim->is_open(); }

std::map<std::string, at::Tensor> Step::statistics() const {
  std::map<std::string, at::Tensor> all;
  if (!is_open()) return all;
  for (std::size_t m = 0; m < impl_->guards.size(); ++m)
    for (auto& [name, kept] : impl_->guards[m].kept()) all[impl_->prefix_of(m) + name] = kept;
  return all;
}

void Step::reopen(const std::map<std::string, at::Tensor>& statistics) {
  for (std::size_t m = 0; m < impl_->guards.size(); ++m) {
    const std::string prefix = impl_->prefix_of(m);
    std::map<std::string, at::Tensor> of_model;
    for (const auto& [name, kept] : statistics)
      if (name.starts_with(prefix)) of_model[name.substr(prefix.size())] = kept;
    impl_->guards[m].remember(of_model);
  }
  impl_->claim->set_open(true);
}

void Step::read() { impl_->read(); }

void Step::watch(std::shared_ptr<StepObserver> observer) {
  if (!observer)
    refuse({.where = kStep,
            .what = "an observer is null",
            .seen = "a null pointer",
            .accepted = "an observer"});
  impl_->observers.push_back(std::move(observer));
}

at::Tensor Step::input(const at::Tensor& from) const {
  const Precision& precision = impl_->run.precision;
  if (!from.defined() || !from.is_floating_point()) return from;
  if (precision.is_mixed() && from.scalar_type() != c10::kDouble) return from;
  return from.to(precision.weights);
}

const Precision& Step::precision() const { return impl_->run.precision; }
int64_t Step::steps_taken() const { return impl_->steps; }
profile::PhaseTimer& Step::phases() { return impl_->timer; }
Recorder& Step::recorder() { return *impl_->recorder; }

}  // namespace demi::loop

#include "demi/loop/step_impl.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <utility>

#include "demi/autocast/apply.h"
#include "demi/autocast/backward.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/loop/region.h"
#include "demi/loop/step_checks.h"
#include "demi/optim/clip.h"
#include "demi/optim/optimizer.h"
#include "demi/optim/parameters.h"
#include "demi/step/pending_step.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/module_tensors.h"

namespace demi::loop {
namespace {

using profile::Phase;
using torch::optim::Optimizer;

using ParameterSet = std::unordered_set<const at::TensorImpl*>;

ParameterSet parameters_of(const torch::nn::Module& module) {
  ParameterSet all;
  for (const at::Tensor& parameter : module.parameters())
    all.insert(parameter.unsafeGetTensorImpl());
  return all;
}

bool holds_one_of(const Optimizer& optimizer, const ParameterSet& tensors) {
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

Step::Impl::Impl(Job of, const Options& with, const graph::GraphSource& source)
    : job(std::move(of)),
      options(with),
      run{.precision = with.precision.value_or(global_precision()),
          .op_policy = with.op_policy,
          .scaler = job.scaler ? job.scaler : &disabled},
      module(job.module()),
      timer(with.device, with.synchronise_phases),
      turns(job.optimizers, with.accumulate),
      steps(with.steps_taken),
      graph_memory(std::make_shared<GraphMemory>(source, with.device)) {
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
  for (const NamedModel& model : job.models) apply_recipe(run.precision, *model.module);
  if (options.guard_statistics)
    for (const NamedModel& model : job.models) guards.emplace_back(*model.module);
  if (options.low_precision_grads) low_precision.emplace(job.optimizers);
  for (Optimizer* one : job.optimizers)
    if (auto* own = dynamic_cast<optim::Optimizer*>(one); own && job.optimizers.size() > 1)
      has_norm_limit |= own->pending().has_norm_limit();
  if (options.graph != GraphMode::off) graphs.emplace(job, options, *module, graph_memory);
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
  for (ParameterSet& of_model : parameters)
    if (of_model.erase(replacement.old.unsafeGetTensorImpl()) > 0)
      of_model.insert(replacement.by.unsafeGetTensorImpl());
  if (graphs) graphs->clear();
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

// The parallel models that get gradients.
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
      for (const at::Tensor& p : optim::parameters_of(*one))
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
          .begins_step = !turns.had_own_batch(),
          .ends_step = ends_step,
          .module = *module,
          .optimizers = job.optimizers,
          .scaler = *run.scaler,
          .precision = run.precision,
          .inputs = inputs};
}

// Two ranks number their batches as one process that accumulates two would.
int64_t Step::Impl::number_of_batch() const {
  const int64_t own = steps * options.accumulate + batches_begun;
  for (const auto* parallel : job.parallel)
    if (parallel) return own * parallel->group().world_size() + parallel->group().rank();
  return own;
}

void Step::Impl::begin(const MicroBatch& how, bool remembers) {
  turns.check(how);
  check_weight(how.weight);
  epoch = how.epoch;
  if (!claim->is_open()) batches_begun = 0;
  set_step(*module, steps, number_of_batch());
  ++batches_begun;
  if (claim->is_open()) return;
  claim->set_open(true);
  if (!remembers) return;
  for (BatchNormGuard& guard : guards) guard.remember();
}

// Whether a batch of this rank's own has given gradients of that model, which a pass then sends.
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

// Decides for all optimizers that are taken now, before the first of them steps.
void Step::Impl::decide_by_norm(const std::vector<std::size_t>& waiting) {
  std::vector<Optimizer*> all;
  for (const std::size_t i : waiting) all.push_back(job.optimizers[i]);
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
      optim::clip_grad_value_(optim::parameters_of(one), options.clip_value);
    if (options.clip_norm > 0) optim::clip_grad_norm_(optim::parameters_of(one), options.clip_norm);
  }
  timer.enter(Phase::step);
  return run.scaler->step(one);
}

// Puts back those of models whose optimizers have all skipped.
void Step::Impl::put_statistics_back() {
  for (std::size_t m = 0; m < guards.size(); ++m) {
    std::vector<StepResult> of_model;
    for (std::size_t i = 0; i < job.optimizers.size(); ++i)
      if (turns.result_of(i) && holds_one_of(*job.optimizers[i], parameters[m]))
        of_model.push_back(*turns.result_of(i));
    if (!of_model.empty()) guards[m].restore_if_skipped(of_model);
  }
}

// The results for averages: an optimizer that was not taken has one that changed nothing.
std::vector<StepResult> Step::Impl::results_of_all() const {
  std::vector<StepResult> all;
  for (std::size_t i = 0; i < job.optimizers.size(); ++i) {
    const std::optional<StepResult>& result = turns.result_of(i);
    all.push_back(result ? *result
                         : StepResult(job.optimizers[i], StepResult::Numbers{.found_inf = 1}, {}));
  }
  return all;
}

// The device's part of finish(). `is_taken`: all have stepped, whatever throws from there on.
void Step::Impl::take(const std::vector<std::size_t>& waiting, bool& is_taken) {
  is_taken = false;
  if (has_norm_limit) decide_by_norm(waiting);
  for (const std::size_t i : waiting)
    turns.take(i, step_of(*job.optimizers[i], /*unscaled=*/has_norm_limit));
  is_taken = true;
  put_statistics_back();
  if (job.average) job.average->update(results_of_all());
  run.scaler->update();
}

std::vector<StepResult> Step::Impl::finish() {
  if (!turns.had_batch())
    refuse({.where = kStep,
            .what = "a step is finished without a batch",
            .seen = "none since the last step or exception",
            .accepted = "one batch or more",
            .advice = "call batch() before"});
  const double rate = job.optimizers.front()->param_groups().front().options().get_lr();
  const std::vector<std::size_t> waiting = turns.waiting();
  bool is_taken = false;
  try {
    const auto body = [&](const Tensors&, const Tensors&) {
      take(waiting, is_taken);
      StepGraphs::Output output;
      for (const std::size_t i : waiting) output.results.push_back(*turns.result_of(i));
      return output;
    };
    const StepGraphs::Output output = graphs ? graphs->finish(body) : body({}, {});
    is_taken = true;
    for (std::size_t k = 0; k < waiting.size(); ++k) turns.take(waiting[k], output.results[k]);
  } catch (...) {
    if (is_taken) ++steps;
    drop();
    throw;
  }
  ++steps;
  std::vector<StepResult> results = turns.results();
  const bool is_recorded = recorder->window().is_open();  // watched since before its batches
  if (is_recorded) recorder->close({.epoch = epoch, .step = steps, .learning_rate = rate}, results);
  const bool is_told = !observers.empty() && (!graphs || is_watched);
  forget();
  timer.enter(Phase::other);
  for (optim::lr::Scheduler* schedule : job.schedules)
    if (schedule) schedule->step();
  if (is_told) tell_update(results);
  if (is_recorded) recorder->count_seconds();
  if (options.read_every > 0 && recorder->unread() >= options.read_every) read();
  return results;
}

void Step::Impl::tell_update(std::vector<StepResult> results) {
  const std::vector<NamedInput> none;
  StepView seen = view(none, /*ends_step=*/true);
  seen.step = steps;
  seen.begins_step = false;
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
  if (graphs) graphs->forget();
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

std::vector<at::Tensor> Step::Impl::run_watched(const Program& program, const MicroBatch& how) {
  begin(how);
  const bool ends = turns.ends(how);
  std::vector<at::Tensor> losses;
  if (observers.empty()) {
    losses = losses_of(program, {}, timer);
    send_back(losses, how, ends, {}, timer);
  } else {
    StepView seen = view(how.inputs, ends);
    seen.repeat = [&](const RepeatOptions& again) { return repeat(program, how, again); };
    each_observer([&](StepObserver& one) { one.before_forward(seen); });
    const RepeatOptions told{.after_forward = [&](const at::Tensor& output) {
      each_observer([&](StepObserver& one) { one.after_forward(seen, output); });
    }};
    losses = losses_of(program, told, timer);
    send_back(losses, how, ends, told, timer);
    seen.loss = last_loss = sum_of(losses);
    each_observer([&](StepObserver& one) { one.after_backward(seen); });
    if (records()) recorder->window().sums.add({.loss = last_loss, .examples = 1});
  }
  turns.count(how, ends, /*is_own=*/true);
  return losses;
}

// The device's part of a batch that nobody watches. `begins`: it is the first of its step.
at::Tensor Step::Impl::run_replayable(const Program& program, const MicroBatch& how, bool begins) {
  if (begins)
    for (BatchNormGuard& guard : guards) guard.remember();
  std::vector<at::Tensor> losses = losses_of(program, {}, timer);
  send_back(losses, how, turns.ends(how), {}, timer);
  return losses.front();
}

Step::Tensors Step::Impl::run_given(const Tensors& inputs, const Tensors& targets,
                                    const ForwardOf& forward, const ResultsOf& results,
                                    const MicroBatch& how) {
  const bool begins = !claim->is_open();
  if (begins) {
    is_watched = graphs && graphs->is_refused(inputs, targets, how.weight);
    each_observer([&](StepObserver& one) { is_watched |= one.needs_step(steps + 1); });
  }
  const bool is_plain = !graphs || is_watched || turns.is_of_some(how);
  const auto body = [&](const Tensors& in, const Tensors& to) {
    StepGraphs::Output output;
    const Forward forward_of_batch = [&] { return forward(in); };
    const Loss loss_of_batch = [&](const at::Tensor& out) {
      Tensors all = results(out, to);
      require(!all.empty(), {.where = kStep,
                             .what = "a batch gives no loss",
                             .seen = "an empty list of results",
                             .accepted = "the loss, and what else is wanted behind it"});
      at::Tensor loss = std::move(all.front());
      if (output.values.empty())  // else an observer repeats the batch
        for (at::Tensor& one : all) output.values.push_back(one.defined() ? one.detach() : one);
      return loss;
    };
    const Program program{.forward = &forward_of_batch, .loss = &loss_of_batch};
    at::Tensor loss =
        is_plain ? run_watched(program, how).front() : run_replayable(program, how, begins);
    output.values.front() = std::move(loss);
    return output;
  };
  if (is_plain)
    return (graphs ? graphs->batch_plainly(inputs, targets, body) : body(inputs, targets)).values;
  begin(how, /*remembers=*/false);
  timer.enter(Phase::forward);
  Tensors values;
  try {
    values = graphs->batch(inputs, targets, how.weight, body).values;
  } catch (...) {
    if (begins && graphs->has_run_nothing())  // what was remembered is of an earlier step
      for (BatchNormGuard& guard : guards) guard.remember();
    throw;
  }
  timer.enter(Phase::other);
  last_loss = values.front();
  if (records()) recorder->window().sums.add({.loss = last_loss, .examples = 1});
  turns.count(how, turns.ends(how), /*is_own=*/true);
  return values;
}

}  // namespace demi::loop

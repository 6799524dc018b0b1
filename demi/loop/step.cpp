#include "demi/loop/step.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <utility>

#include "demi/core/error.h"
#include "demi/graph/device_graph.h"
#include "demi/loop/step_checks.h"
#include "demi/loop/step_impl.h"

namespace demi::loop {

using torch::optim::Optimizer;

Step::Step(Job job, Options options) : Step(std::move(job), options, graph::machine_graphs()) {}
Step::Step(Job job, Options options, const graph::GraphSource& graphs)
    : impl_(std::make_unique<Impl>(std::move(job), options, graphs)) {}
Step::~Step() = default;
Step::Step(Step&&) noexcept = default;
Step& Step::operator=(Step&&) noexcept = default;

std::vector<at::Tensor> Step::run(const Program& program, const MicroBatch& how) try {
  if (!impl_->graphs) return impl_->run_watched(program, how);
  if (impl_->graphs->counts().refusal.empty()) {
    TORCH_WARN_ONCE("[loop.Step] batches whose tensors are not handed over are not recorded in a ",
                    "graph: call batch(inputs, targets, forward, loss)");
  }
  impl_->is_watched = true;
  std::vector<at::Tensor> losses;
  impl_->graphs->batch_plainly({}, {}, [&](const Tensors&, const Tensors&) {
    losses = impl_->run_watched(program, how);
    return StepGraphs::Output{};
  });
  return losses;
} catch (...) {
  impl_->drop();
  throw;
}

at::Tensor Step::batch(const Tensors& inputs, const Tensors& targets, const ForwardOf& forward,
                       const LossOf& loss, const MicroBatch& how) {
  const ResultsOf results = [&](const at::Tensor& output, const Tensors& to) {
    return Tensors{loss(output, to)};
  };
  return batch(inputs, targets, forward, results, how).front();
}

Step::Tensors Step::batch(const Tensors& inputs, const Tensors& targets, const ForwardOf& forward,
                          const ResultsOf& results, const MicroBatch& how) try {
  MicroBatch named = how;
  if (named.inputs.empty() && !impl_->observers.empty()) {
    const auto add = [&](const char* name, const Tensors& all) {
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].defined())
          named.inputs.emplace_back(i == 0 ? name : name + std::to_string(i + 1), all[i]);
    };
    add("input", inputs);
    add("target", targets);
  }
  return impl_->run_given(inputs, targets, forward, results, named);
} catch (...) {
  impl_->drop();
  throw;
}

void Step::pass(const MicroBatch& how) {
  Impl& step = *impl_;
  step.or_drop([&] {
    step.is_watched = true;
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

void Step::reopen(const std::map<std::string, at::Tensor>& statistics, int64_t batches) {
  impl_->batches_begun = batches;
  impl_->turns.reopen(batches);
  for (std::size_t m = 0; m < impl_->guards.size(); ++m) {
    const std::string prefix = impl_->prefix_of(m);
    std::map<std::string, at::Tensor> of_model;
    for (const auto& [name, kept] : statistics)
      if (name.starts_with(prefix)) of_model[name.substr(prefix.size())] = kept;
    impl_->guards[m].remember(of_model);
  }
  impl_->claim->set_open(true);
  if (impl_->graphs) impl_->graphs->go_on_plainly();
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
Step::GraphCounts Step::graph_counts() const {
  return impl_->graphs ? impl_->graphs->counts() : GraphCounts();
}
std::shared_ptr<GraphMemory> Step::graph_memory() { return impl_->graph_memory; }
Recorder& Step::recorder() { return *impl_->recorder; }

}  // namespace demi::loop

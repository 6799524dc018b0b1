#include "demi/loop/step_graphs.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "demi/core/error.h"
#include "demi/loop/step_checks.h"
#include "demi/optim/optimizer.h"
#include "demi/step/pending_step.h"
#include "demi/step/streams.h"

namespace demi::loop {
namespace {

enum : std::int64_t { kBatch, kFinish };

std::string why_not(const Job& job, const Options& options, const GraphMemory& memory) {
  for (const auto* optimizer : job.optimizers)
    if (!dynamic_cast<const optim::Optimizer*>(optimizer))
      return "an optimizer is one of torch::optim, whose step count and rate lie on the host";
  for (const auto* parallel : job.parallel)
    if (parallel) return "several ranks average their gradients by hooks, which no graph repeats";
  if (options.synchronise_phases) return "Options::synchronise_phases waits between the phases";
  return memory.obstacle();
}

// The inputs and targets that a body has as one list.
RecordedWork::Body split(const StepGraphs::Body& body, std::size_t inputs) {
  return [&body, inputs](const RecordedWork::Tensors& given) {
    const auto middle = given.begin() + static_cast<std::ptrdiff_t>(inputs);
    return body({given.begin(), middle}, {middle, given.end()});
  };
}

RecordedWork::Tensors joined(RecordedWork::Tensors inputs, const RecordedWork::Tensors& targets) {
  inputs.insert(inputs.end(), targets.begin(), targets.end());
  return inputs;
}

}  // namespace

StepGraphs::StepGraphs(const Job& job, const Options& options, const torch::nn::Module& module,
                       std::shared_ptr<GraphMemory> memory)
    : RecordedWork({.where = kStep, .what = "the step"}, options.graph, std::move(memory)),
      job_(job),
      module_(module) {
  const std::string reason = why_not(job, options, *this->memory());
  if (reason.empty())
    clear();
  else
    refuse_from_the_start(reason, "demi's optimizers on one CUDA device, without ranks",
                          /*is_said=*/false);
}

void StepGraphs::clear() {
  gradients_.reset();
  Tensors more;
  for (const auto* optimizer : job_.optimizers)
    for (const auto& group : optimizer->param_groups())
      more.insert(more.end(), group.params().begin(), group.params().end());
  set_module(module_, more);
}

void StepGraphs::forget() {
  gradients_.reset();
  is_plain_ = false;
}

StepGraphs::Output StepGraphs::batch(const Tensors& inputs, const Tensors& targets, double weight,
                                     const Body& body) {
  if (!records()) return batch_plainly(inputs, targets, body);
  require_device(inputs);
  require_device(targets);
  if (!is_replayable()) return batch_plainly(inputs, targets, body);
  return run(front_of_batch(inputs, weight), joined(inputs, targets), split(body, inputs.size()));
}

RecordedWork::Key StepGraphs::front_of_batch(const Tensors& inputs, double weight) const {
  return {kBatch, gradients_ ? gradients_->id : 0, std::bit_cast<std::int64_t>(weight),
          static_cast<std::int64_t>(inputs.size())};
}

bool StepGraphs::is_refused(const Tensors& inputs, const Tensors& targets, double weight) {
  return RecordedWork::is_refused(front_of_batch(inputs, weight), joined(inputs, targets));
}

StepGraphs::Output StepGraphs::batch_plainly(const Tensors& inputs, const Tensors& targets,
                                             const Body& body) {
  is_plain_ = true;
  return run_plainly(joined(inputs, targets), split(body, inputs.size()));
}

StepGraphs::Output StepGraphs::finish(const Body& body) {
  if (!records() || !gradients_ || !is_replayable()) return run_plainly({}, split(body, 0));
  return run({kFinish, gradients_->id}, {}, split(body, 0));
}

// Whether the step was replayed so far, gradients are those that it has left, and the program
// itself records nothing.
bool StepGraphs::is_replayable() {
  for (std::size_t i = 0; i < parameters().size() && !is_plain_; ++i) {
    const at::Tensor& gradient = parameters()[i].grad();
    is_plain_ = gradients_ ? !gradient.is_same(gradients_->of[i]) : gradient.defined();
  }
  is_plain_ = is_plain_ || optim::is_capturing(memory()->device());
  return !is_plain_;
}

graph::WorkTrace::Work StepGraphs::kind_of_work(const Tensors& given) const {
  return given.empty() ? graph::WorkTrace::Work::finish : graph::WorkTrace::Work::batch;
}

void StepGraphs::will_run_plainly(const Tensors& given) {
  if (!given.empty()) is_plain_ = true;  // a batch
}

StepGraphs::Tensors StepGraphs::also_given() const {
  Tensors gradients;
  for (const at::Tensor& p : parameters())
    if (p.grad().defined()) gradients.push_back(p.grad());
  return gradients;
}

void StepGraphs::set_gradients(const Tensors& gradients) {
  for (std::size_t i = 0; i < parameters().size(); ++i)
    parameters()[i].mutable_grad() = gradients[i];
}

void StepGraphs::will_record() {
  before_recording_.clear();
  for (const at::Tensor& p : parameters()) before_recording_.push_back(p.grad());
}

// Optimizers and scaler forget what the recording has told them of the gradients.
void StepGraphs::recording_failed() {
  for (auto* optimizer : job_.optimizers) {
    optimizer->zero_grad();
    if (auto* own = dynamic_cast<optim::Optimizer*>(optimizer)) own->pending().end_inspection();
  }
  if (job_.scaler) job_.scaler->load_state_dict(job_.scaler->state_dict());
  set_gradients(std::exchange(before_recording_, {}));
}

std::function<void()> StepGraphs::has_recorded() {
  const auto left = present_gradients(gradients_);
  set_gradients(std::exchange(before_recording_, {}));
  return [this, left] {
    gradients_ = left;
    set_gradients(left->of);
  };
}

std::shared_ptr<const StepGraphs::Gradients> StepGraphs::present_gradients(
    std::shared_ptr<const Gradients> before) {
  Tensors now;
  for (const at::Tensor& p : parameters()) now.push_back(p.grad());
  const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  if (before && std::ranges::equal(before->of, now, is_same)) return before;
  return std::make_shared<const Gradients>(Gradients{++gradients_seen_, std::move(now)});
}

}  // namespace demi::loop

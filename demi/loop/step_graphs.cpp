#include "demi/loop/step_graphs.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <unordered_set>
#include <utility>

#include "demi/core/error.h"
#include "demi/loop/step_checks.h"
#include "demi/optim/optimizer.h"
#include "demi/step/pending_step.h"
#include "demi/step/streams.h"
#include "demi/tensor/module_tensors.h"
#include "demi/weights/weights.h"

namespace demi::loop {
namespace {

/// Plain runs of a kind before it is recorded: lazy handles and workspaces are made, an algorithm
/// is chosen, states and tables are there. PyTorch asks for as many.
constexpr int kPlainRuns = 3;
/// And at most, if a run differs from the one before: the first after a change may make copies.
constexpr int kMostPlainRuns = 6;
/// Kinds that are kept: the one that was not used for the longest time goes.
constexpr std::size_t kMostGraphs = 16;

enum : std::int64_t { kBatch, kFinish };

// The step's host code knows which copies are valid, and asks before each replay.
class CapturesStep {
 public:
  CapturesStep() : before_(weights::captures_step()) { weights::set_captures_step(true); }
  ~CapturesStep() { weights::set_captures_step(before_); }
  CapturesStep(const CapturesStep&) = delete;
  CapturesStep& operator=(const CapturesStep&) = delete;

 private:
  bool before_;
};

// Work goes to `side` while it lives, after what the caller's stream holds; that stream goes on
// after it.
class OnStream {
 public:
  explicit OnStream(c10::Stream side)
      : before_(*optim::current_stream(side.device())), guard_(side) {
    optim::wait_for(before_);
  }
  ~OnStream() {
    const c10::Stream side = guard_.current_stream();
    guard_.reset_stream(before_);
    optim::wait_for(side);
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream before_;
  c10::StreamGuard guard_;
};

StepGraphs::Tensors fixed(const StepGraphs::Tensors& given) {
  StepGraphs::Tensors all;
  for (const at::Tensor& one : given) all.push_back(one.defined() ? one.detach().clone() : one);
  return all;
}

void fill(const StepGraphs::Tensors& fixed, const StepGraphs::Tensors& given) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < fixed.size(); ++i)
    if (fixed[i].defined()) at::Tensor(fixed[i]).copy_(given[i], /*non_blocking=*/true);
}

void add_form(std::vector<std::int64_t>& key, const at::Tensor& tensor) {
  if (!tensor.defined()) return key.push_back(-1);
  key.push_back(static_cast<std::int64_t>(tensor.scalar_type()) << 8 | tensor.dim());
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
}

// LibTorch's or demi's: what was tried cannot be recorded.
bool is_of_device(const std::exception& error) {
  return dynamic_cast<const c10::Error*>(&error) || dynamic_cast<const DeviceError*>(&error) ||
         dynamic_cast<const UsageError*>(&error);
}

std::string why_not(const Job& job, const Options& options, const graph::GraphSource& source) {
  for (const auto* optimizer : job.optimizers)
    if (!dynamic_cast<const optim::Optimizer*>(optimizer))
      return "an optimizer is one of torch::optim, whose step count and rate lie on the host";
  for (const auto* parallel : job.parallel)
    if (parallel) return "several ranks average their gradients by hooks, which no graph repeats";
  if (options.synchronise_phases) return "Options::synchronise_phases waits between the phases";
  return source.obstacle(options.device);
}

}  // namespace

struct StepGraphs::Kind {
  int runs = 0;
  std::unique_ptr<graph::WorkTrace> first, second;  // of the last two plain runs
  std::unique_ptr<graph::DeviceGraph> graph;
  Tensors inputs, targets;
  std::vector<c10::Storage> outside;  // what else the graph reads
  Output output;                      // in its memory
  std::shared_ptr<const Gradients> gradients;
  std::vector<graph::HostPart> parts;
  weights::RecordedCopies copies;
  std::int64_t used = 0;
};

StepGraphs::StepGraphs(const Job& job, const Options& options, const torch::nn::Module& module,
                       const graph::GraphSource& source)
    : job_(job),
      options_(options),
      module_(module),
      source_(source),
      refusal_(why_not(job, options, source)) {
  if (!refusal_.empty()) {
    if (options.graph == GraphMode::on)
      refuse({.where = kStep,
              .what = "the step cannot be recorded in a graph",
              .seen = refusal_,
              .accepted = "demi's optimizers on one CUDA device, without ranks",
              .advice = "take GraphMode::automatic, which then runs the step plainly"});
    if (!options.device.is_cpu()) {
      TORCH_WARN("[loop.Step] the step is not recorded in a graph and runs plainly: ", refusal_);
    }
    return;
  }
  side_ = c10::impl::VirtualGuardImpl(options.device.type())
              .getStreamFromGlobalPool(options.device, /*isHighPriority=*/false);
  clear();
}

StepGraphs::~StepGraphs() = default;

void StepGraphs::clear() {
  kinds_.clear();
  held_.clear();
  parameters_.clear();
  buffers_.clear();
  modules_.clear();
  gradients_.reset();
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& [name, tensor] : tensor::parameters_once(module_)) {
    held_.emplace_back(name, tensor);
    parameters_.push_back(tensor);
    seen.insert(tensor.unsafeGetTensorImpl());
  }
  for (const auto* optimizer : job_.optimizers)
    for (const auto& group : optimizer->param_groups())
      for (const at::Tensor& p : group.params())
        if (seen.insert(p.unsafeGetTensorImpl()).second) parameters_.push_back(p);
  for (const auto& [name, tensor] : tensor::buffers_once(module_)) {
    held_.emplace_back(name, tensor);
    buffers_.push_back(tensor);
  }
  for (const auto& one : module_.modules()) modules_.push_back(one.get());
}

void StepGraphs::forget() {
  gradients_.reset();
  is_plain_ = false;
  if (!refusal_.empty()) kinds_.clear();  // their memory is of no use any more
}

void StepGraphs::require_device(const Tensors& given) const {
  for (const at::Tensor& one : given)
    if (one.defined() && one.device() != options_.device)
      refuse({.where = kStep,
              .what = "a tensor of a batch lies on another device than the step",
              .seen = one.device().str(),
              .accepted = options_.device.str(),
              .advice = "move it there: tensor.to(device)"});
}

// What shapes the work beside the batch. An address is part of it: a graph reads and writes there.
void StepGraphs::add_settings(Key& key) {
  Backends now = Backends::current();
  if (!(now == backends_)) {
    backends_ = std::move(now);
    ++backends_seen_;
  }
  key.push_back(backends_seen_);
  key.push_back(static_cast<std::int64_t>(weights::mode()) << 1 |
                static_cast<std::int64_t>(at::GradMode::is_enabled()));
  std::int64_t bits = 1;
  const auto add_bit = [&](bool bit) {
    bits = bits << 1 | static_cast<std::int64_t>(bit);
    if (bits >> 62 != 0) key.push_back(std::exchange(bits, 1));
  };
  for (const torch::nn::Module* one : modules_) add_bit(one->is_training());
  for (const at::Tensor& one : parameters_) add_bit(one.requires_grad());
  key.push_back(bits);
  for (const Tensors* all : {&parameters_, &buffers_})
    for (const at::Tensor& one : *all)
      key.push_back(std::bit_cast<std::int64_t>(one.const_data_ptr()));
}

StepGraphs::Key StepGraphs::key_of(std::int64_t kind, const Tensors& inputs, const Tensors& targets,
                                   double weight) {
  Key key{kind, gradients_ ? gradients_->id : 0, std::bit_cast<std::int64_t>(weight)};
  for (const at::Tensor& one : inputs) add_form(key, one);
  key.push_back(-2);
  for (const at::Tensor& one : targets) add_form(key, one);
  add_settings(key);
  return key;
}

StepGraphs::Output StepGraphs::batch(const Tensors& inputs, const Tensors& targets, double weight,
                                     const Body& body) {
  if (!refusal_.empty()) return batch_plainly(inputs, targets, body);
  require_device(inputs);
  require_device(targets);
  if (!is_replayable()) return batch_plainly(inputs, targets, body);
  return run(key_of(kBatch, inputs, targets, weight), inputs, targets, body);
}

StepGraphs::Output StepGraphs::batch_plainly(const Tensors& inputs, const Tensors& targets,
                                             const Body& body) {
  is_plain_ = true;
  return run_plainly(inputs, targets, body);
}

StepGraphs::Output StepGraphs::finish(const Body& body) {
  if (!refusal_.empty() || !gradients_ || !is_replayable()) return run_plainly({}, {}, body);
  return run(key_of(kFinish, {}, {}, 1), {}, {}, body);
}

// Whether the step was replayed so far, gradients are those that it has left, and the program
// itself records nothing.
bool StepGraphs::is_replayable() {
  for (std::size_t i = 0; i < parameters_.size() && !is_plain_; ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    is_plain_ = gradients_ ? !gradient.is_same(gradients_->of[i]) : gradient.defined();
  }
  is_plain_ = is_plain_ || optim::is_capturing(options_.device);
  return !is_plain_;
}

// On the stream of the recordings: autograd's nodes, libraries' handles and copies are then known
// there.
StepGraphs::Output StepGraphs::run_plainly(const Tensors& inputs, const Tensors& targets,
                                           const Body& body) {
  if (!refusal_.empty() || optim::is_capturing(options_.device)) return body(inputs, targets);
  const OnStream side(*side_);
  return body(inputs, targets);
}

StepGraphs::Output StepGraphs::run(Key key, const Tensors& inputs, const Tensors& targets,
                                   const Body& body) {
  auto& place = kinds_[std::move(key)];
  if (!place) place = std::make_unique<Kind>();
  Kind& kind = *place;
  kind.used = ++uses_;
  has_run_nothing_ = false;
  Output output;
  if (kind.graph) {
    if (replay(kind, inputs, targets, output)) return output;
    kind = Kind{.used = kind.used};  // it is no longer what a step does
  }
  if (kind.first && kind.second && is_steady(kind) && record(kind, inputs, targets, body)) {
    if (replay(kind, inputs, targets, output)) return output;
    give_up("what was recorded does not hold at once");
  }
  return run_first(kind, inputs, targets, body);
}

StepGraphs::Output StepGraphs::run_first(Kind& kind, const Tensors& inputs, const Tensors& targets,
                                         const Body& body) {
  const bool is_batch = !inputs.empty() || !targets.empty();
  if (is_batch) is_plain_ = true;
  if (!refusal_.empty() || kind.runs + 2 < kPlainRuns) {
    ++kind.runs;
    return run_plainly(inputs, targets, body);
  }
  graph::NamedTensors given;
  for (const Tensors* all : {&inputs, &targets})
    for (const at::Tensor& one : *all) given.emplace_back("", one);
  for (const at::Tensor& p : parameters_)
    if (p.grad().defined()) given.emplace_back("", p.grad());
  auto trace = graph::WorkTrace::begin(given, held_);
  Output output = run_plainly(inputs, targets, body);
  if (!trace) return output;  // another thread traces: the next run does
  trace->end();
  (kind.first ? kind.second : kind.first) = std::move(trace);
  ++kind.runs;
  return output;
}

// Whether the last two plain runs were the same work, which can be recorded.
bool StepGraphs::is_steady(Kind& kind) {
  for (const auto* trace : {&*kind.first, &*kind.second})
    if (!trace->obstacle().empty()) {
      give_up(trace->obstacle());
      return false;
    }
  const std::string found = kind.first->difference(*kind.second);
  if (!found.empty()) {
    if (kind.runs >= kMostPlainRuns) give_up(found);
    kind.first = std::move(kind.second);
    return false;
  }
  kind.outside = kind.second->outside();
  kind.first.reset();
  kind.second.reset();
  return true;
}

void StepGraphs::give_up(const std::string& reason) {
  refusal_ = reason;
  gradients_.reset();
  is_plain_ = true;
  if (options_.graph == GraphMode::on)
    refuse({.where = kStep,
            .what = "the step cannot be recorded in a graph",
            .seen = reason,
            .accepted = "work that the device does alone and that is the same each time",
            .advice = "change what is named, or take GraphMode::automatic, which then runs the "
                      "step plainly"});
  TORCH_WARN("[loop.Step] the step is not recorded in a graph and runs plainly: ", reason);
}

void StepGraphs::set_gradients(const Tensors& gradients) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients[i];
}

// Optimizers and scaler forget what a recording that failed has told them of the gradients.
void StepGraphs::undo(const Tensors& gradients) {
  for (auto* optimizer : job_.optimizers) {
    optimizer->zero_grad();
    if (auto* own = dynamic_cast<optim::Optimizer*>(optimizer)) own->pending().end_inspection();
  }
  if (job_.scaler) job_.scaler->load_state_dict(job_.scaler->state_dict());
  set_gradients(gradients);
}

// Nothing that is recorded runs: on an exception gradients and records are as before.
bool StepGraphs::record(Kind& kind, const Tensors& inputs, const Tensors& targets,
                        const Body& body) {
  make_room();
  Tensors before;
  for (const at::Tensor& p : parameters_) before.push_back(p.grad());
  const graph::DeviceGraph* beside = nullptr;
  for (const auto& [key, other] : kinds_)
    if (other->graph) beside = other->graph.get();
  try {
    kind.inputs = fixed(inputs);
    kind.targets = fixed(targets);
    kind.graph = source_.make(options_.device, beside);
    const OnStream side(*side_);  // waits for it again when nothing is recorded there any more
    const CapturesStep captures;
    graph::RecordingScope recording;
    try {
      kind.graph->begin();
      kind.output = body(kind.inputs, kind.targets);
      kind.graph->end();
    } catch (...) {
      kind.output = {};
      kind.graph->abandon();
      throw;
    }
    kind.parts = recording.take_parts();
  } catch (const std::exception& error) {
    kind = Kind{.used = kind.used};
    undo(before);
    if (!is_of_device(error)) {  // the program's own
      has_run_nothing_ = true;
      throw;
    }
    const std::string words = error.what();
    give_up(words.substr(0, words.find('\n')));
    return false;
  }
  kind.copies = weights::RecordedCopies(parameters_);
  kind.gradients = present_gradients(gradients_);
  set_gradients(before);
  ++recorded_;
  return true;
}

std::shared_ptr<const StepGraphs::Gradients> StepGraphs::present_gradients(
    std::shared_ptr<const Gradients> before) {
  Tensors now;
  for (const at::Tensor& p : parameters_) now.push_back(p.grad());
  const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  if (before && std::ranges::equal(before->of, now, is_same)) return before;
  return std::make_shared<const Gradients>(Gradients{++gradients_seen_, std::move(now)});
}

bool StepGraphs::replay(Kind& kind, const Tensors& inputs, const Tensors& targets, Output& output) {
  for (const graph::HostPart& part : kind.parts)
    if (part.prepare && !part.prepare()) return false;
  if (!kind.copies.refresh()) return false;
  fill(kind.inputs, inputs);
  fill(kind.targets, targets);
  kind.graph->replay();
  ++replays_;
  for (const graph::HostPart& part : kind.parts)
    if (part.note) part.note();
  gradients_ = kind.gradients;
  set_gradients(gradients_->of);
  for (const at::Tensor& value : kind.output.values)
    output.values.push_back(value.defined() ? value.clone() : value);
  for (const StepResult& result : kind.output.results) output.results.push_back(result.copied());
  return true;
}

void StepGraphs::make_room() {
  constexpr std::size_t kMostKinds = 4 * kMostGraphs;
  const auto graphs = static_cast<std::size_t>(
      std::ranges::count_if(kinds_, [](const auto& one) { return one.second->graph != nullptr; }));
  if (graphs < kMostGraphs && kinds_.size() < kMostKinds) return;
  auto oldest = kinds_.end();
  for (auto one = kinds_.begin(); one != kinds_.end(); ++one)
    if (one->second->used != uses_ && (graphs < kMostGraphs || one->second->graph) &&
        (oldest == kinds_.end() || one->second->used < oldest->second->used))
      oldest = one;
  if (oldest != kinds_.end()) kinds_.erase(oldest);
}

}  // namespace demi::loop

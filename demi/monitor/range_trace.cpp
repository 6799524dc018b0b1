#include "demi/monitor/range_trace.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "demi/monitor/monitor.h"
#include "demi/monitor/unobserved.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/tensor/dtype.h"

namespace demi::monitor {
namespace {

constexpr const char* kUnknown = "tensor from outside";
constexpr int kInRegion = -1;  // a value of the region, which is not recorded further

bool has_numbers(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.numel() > 0 &&
         !tensor.device().is_meta();
}

// The greatest magnitude, on the device; Inf or NaN if it holds one.
at::Tensor greatest_of(const at::Tensor& tensor) {
  const at::Tensor values = values_of(tensor);
  if (values.numel() == 0) return at::zeros({}, values.options().dtype(c10::kDouble));
  const auto [least, greatest] = at::aminmax(values);
  return at::maximum(least.abs(), greatest.abs()).to(c10::kDouble);
}

// Counts of one kind, by value.
struct TensorCounts {
  std::vector<ExponentCounter> counters;
  std::vector<at::Tensor> greatest;

  void resize(std::size_t values) {
    counters.resize(values);
    greatest.resize(values);
  }
  void add(int value, const at::Tensor& tensor) {
    const auto i = static_cast<std::size_t>(value);
    counters[i].add(tensor);
    const at::Tensor now = greatest_of(tensor);
    greatest[i] = greatest[i].defined() ? at::maximum(greatest[i], now) : now;
  }
};

struct Read {
  std::vector<ExponentHistogram> counts;
  std::vector<double> greatest;
};

double greatest_in(const ExponentHistogram& counts) {
  for (int e = ExponentHistogram::kHighest; e >= ExponentHistogram::kLowest; --e)
    if (counts.counts[static_cast<std::size_t>(e - ExponentHistogram::kLowest)] > 0)
      return std::ldexp(1.0, e);
  return 0;
}

// Reads the counts. If a tensor holds Inf or NaN, its greatest finite number is known to its power
// of two.
Read read(const TensorCounts& counted) {
  Read result{ExponentCounter::read(counted.counters),
              std::vector<double>(counted.greatest.size())};
  std::vector<at::Tensor> here;
  for (const at::Tensor& one : counted.greatest)
    if (one.defined()) here.push_back(here.empty() ? one : one.to(here.front().device()));
  if (here.empty()) return result;
  const at::Tensor all = at::stack(here).cpu();
  const double* next = all.const_data_ptr<double>();
  for (std::size_t i = 0; i < counted.greatest.size(); ++i) {
    if (!counted.greatest[i].defined()) continue;
    const double value = *next++;
    result.greatest[i] = std::isfinite(value) ? value : greatest_in(result.counts[i]);
  }
  return result;
}

c10::DeviceType device_of(const loop::StepView& view) {
  for (const auto& [name, tensor] : view.inputs)
    if (tensor.defined()) return tensor.device().type();
  const auto parameters = view.module.parameters();
  return parameters.empty() ? c10::DeviceType::CPU : parameters.front().device().type();
}

std::string without_namespace(std::string name) {
  return name.starts_with("aten::") ? name.substr(6) : name;
}

}  // namespace

thread_local RangeTrace* RangeTrace::current = nullptr;

struct RangeTrace::Open final : at::ObserverContext {
  const OpKind* kind = nullptr;  // none: an op inside of one that is in a list, or in memory's way
  const OpKind* outer = nullptr;
  std::int64_t serial = 0;
  std::vector<at::Tensor> inputs;
};

// Hooks in backward write here after the trace has turned to another batch.
struct RangeTrace::Counts {
  std::mutex mutex;
  TensorCounts before, after, gradients;
  std::set<int> counted, hooked;

  void resize(std::size_t values) {
    const std::lock_guard lock(mutex);
    for (TensorCounts* each : {&before, &after, &gradients}) each->resize(values);
  }
};

RangeTrace::RangeTrace(c10::ScalarType format, const OpPolicy& policy, TracedScale scale)
    : format_(format), policy_(policy), scale_(scale) {}

RangeTrace::~RangeTrace() { end_forward(); }

void RangeTrace::begin_in_region(const loop::StepView& view) {
  is_region_ = true;
  observe(view);
}

void RangeTrace::begin(const loop::StepView& view) {
  if (is_region_) region_times_ = times_;
  is_region_ = false;
  observe(view);
}

void RangeTrace::observe(const loop::StepView& view) {
  end_forward();
  const torch::nn::Module& model = view.module;
  layers_ = std::make_unique<Layers>(model);
  if (graph_.ops.empty()) keep_base_parts(policy_);
  if (rules_.empty())
    for (const OpRule& rule : policy_.rules(device_of(view))) rules_[rule.op] = rule.category;
  counts_ = std::make_shared<Counts>();
  counts_->resize(graph_.values.size());
  known_.clear();
  times_.clear();
  open_.clear();
  last_layer_.clear();
  held_.clear();
  for (const auto& [name, tensor] : view.inputs)
    if (name != "target") held_.emplace_back("batch " + name, tensor);  // the loss is FP32
  for (const auto& buffer : model.named_buffers())
    held_.emplace_back("buffer " + buffer.key(), buffer.value());
  for (const auto& parameter : model.named_parameters()) {
    const auto [at, is_new] = outside_.try_emplace("parameter " + parameter.key(), 0);
    if (is_new) {
      at->second = new_value(at->first);
      graph_.values.back().is_parameter = true;
      graph_.values.back().size = parameter.value().numel();
    }
    know(parameter.value(), at->second, -1);
  }
  current = this;
  is_forward_ = true;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&RangeTrace::on_start, &RangeTrace::on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

// The layers of the parts that the policy names already.
void RangeTrace::keep_base_parts(const OpPolicy& policy) {
  for (const std::string& part : policy.fp32_parts())
    for (const Layer& layer : layers_->all())
      if (layer.name == part || layer.name.starts_with(part + ".")) kept_.layers.insert(layer.name);
}

void RangeTrace::end_forward() {
  is_forward_ = false;
  if (current == this) current = nullptr;
  if (handle_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle_);
  handle_ = at::INVALID_CALLBACK_HANDLE;
}

std::unique_ptr<at::ObserverContext> RangeTrace::on_start(const at::RecordFunction& op) {
  if (!current || !current->is_forward_) return nullptr;
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    current->is_forward_ = false;
    return nullptr;
  }
  const Unobserved unobserved;
  return current->begin_op(op);
}

void RangeTrace::on_end(const at::RecordFunction& op, at::ObserverContext* context) {
  if (!current || !context) return;
  const Unobserved unobserved;
  current->end_op(op, static_cast<Open&>(*context));
}

const RangeTrace::OpKind& RangeTrace::kind_of(const at::RecordFunction& op) {
  const auto full = op.operator_name().value_or(c10::OperatorName(op.name(), ""));
  const auto [at, is_new] = kinds_.try_emplace(full.name + "." + full.overload_name);
  OpKind& kind = at->second;
  if (!is_new) return kind;
  const std::string base = without_namespace(full.name);
  kind.name = full.overload_name.empty() ? base : base + "." + full.overload_name;
  const auto schema = c10::Dispatcher::singleton().findSchema(full);
  kind.writes = !schema || schema->schema().is_mutable();
  kind.is_in_place = kind.writes && base.ends_with("_");
  kind.gives_memory = base.starts_with("empty") || base.starts_with("new_empty");
  if (kind.is_in_place || base.find("norm") != base.npos) kind.follows = StepGraph::Follows::first;
  const auto rule = rules_.find(kind.name);
  if (rule != rules_.end()) kind.category = rule->second;
  // It is in no list on a CPU, and has a kernel that casts.
  else if (base == "lstm")
    kind.category = OpCategory::lower_precision;
  return kind;
}

// Whether the tensor is counted: a region would cast it, or, in a region, has cast it.
bool RangeTrace::is_traced(const at::Tensor& tensor) const {
  return has_numbers(tensor) && (tensor.scalar_type() == c10::kFloat ||
                                 (is_region_ && tensor::is_16_bit(tensor.scalar_type())));
}

// An op inside one that is in a list computes in the dtype of the outer one. An op that writes to
// memory of an op around it is a part of that op.
std::unique_ptr<RangeTrace::Open> RangeTrace::begin_op(const at::RecordFunction& op) {
  auto open = std::make_unique<Open>();
  open->serial = serial_++;
  const Open* around = open_.empty() ? nullptr : open_.back();
  open_.push_back(open.get());
  const bool is_inside =
      around && (!around->kind || around->kind->category != OpCategory::unchanged);
  if (is_inside) return open;
  const OpKind& kind = kind_of(op);
  if (around && kind.writes && !kind.is_in_place) return open;
  open->kind = &kind;
  open->outer = around ? around->outer : open->kind;
  for_each_tensor(op.inputs(), [&](const at::Tensor& tensor) { open->inputs.push_back(tensor); });
  return open;
}

std::vector<at::Tensor> RangeTrace::outputs_of(const at::RecordFunction& op, const Open& open) {
  std::vector<at::Tensor> written;
  for_each_tensor(op.outputs(), [&](const at::Tensor& tensor) {
    if (!is_traced(tensor)) return;
    const auto known = known_.find(tensor.unsafeGetTensorImpl());
    if (known != known_.end() && known->second.serial > open.serial && !known->second.is_memory) {
      // Inside of the op it had no graph yet.
      if (!is_region_) hook(known->second.value, tensor);
      return;
    }
    if (!open.kind->writes)
      for (const at::Tensor& input : open.inputs)
        if (is_traced(input) && memory_of(input) == memory_of(tensor)) {
          if (!input.is_same(tensor)) know(tensor, value_read(input), open.serial);
          return;
        }
    written.push_back(tensor);
  });
  return written;
}

void RangeTrace::end_op(const at::RecordFunction& fn, Open& open) {
  const auto place = std::ranges::find(open_, &open);
  if (place != open_.end()) open_.erase(place, open_.end());
  if (!is_forward_ || !open.kind) return;
  const bool reads =
      std::ranges::any_of(open.inputs, [&](const at::Tensor& tensor) { return is_traced(tensor); });
  if (!reads && (open.kind->gives_memory || open.kind->is_in_place)) return;
  // Memory that the op around it has allocated, and will return as its result.
  if (!open_.empty() && open.kind->is_in_place && !is_result(open.inputs.front())) return;
  const std::vector<at::Tensor> outputs = outputs_of(fn, open);
  if (outputs.empty()) return;
  // A number that an op makes for itself decides on no dtype.
  if (!reads && !open_.empty() && outputs.front().dim() == 0) return;
  const int layer = layer_of(open);
  const std::string key = key_of(open);
  if (is_region_) {
    in_region_[key] = tensor::is_16_bit(outputs.front().scalar_type());
    for (const at::Tensor& output : outputs)
      know(output, kInRegion, open.serial, open.kind->gives_memory);
    return;
  }
  const int index = op_index(open, key, layer >= 0);
  StepGraph::Op& op = graph_.ops[static_cast<std::size_t>(index)];
  read_inputs(op, open);
  if (op.outputs.empty()) follow_region(index, key);
  cast_inputs(op, open);
  const bool is_low = gives_16_bits(op, kept_, low_);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (i == op.outputs.size()) {
      op.outputs.push_back(new_value(""));
      graph_.values.back().producer = index;
    }
    const int value = op.outputs[i];
    low_[static_cast<std::size_t>(value)] = is_low;
    know(outputs[i], value, open.serial, open.kind->gives_memory);
    if (!is_low || open.kind->gives_memory) continue;
    count_forward(value, outputs[i]);
    hook(value, outputs[i]);
  }
}

// The layer whose weights the op reads; -1: none.
int RangeTrace::layer_of(const Open& open) {
  int layer = -1;
  for (const at::Tensor& input : open.inputs) layer = std::max(layer, layers_->find(input));
  if (layer >= 0) last_layer_ = layers_->all()[static_cast<std::size_t>(layer)].name;
  return layer;
}

// The op's key: layer, op and how often that op has run in the batch.
std::string RangeTrace::key_of(const Open& open) {
  const std::string op = last_layer_ + "|" + open.outer->name + "|" + open.kind->name;
  return op + "|" + std::to_string(times_[op]++);
}

int RangeTrace::op_index(const Open& open, const std::string& key, bool reads_weights) {
  const auto [at, is_new] = ops_.try_emplace(key, static_cast<int>(graph_.ops.size()));
  if (is_new) {
    const bool outer_has_rule = !open.outer->writes;
    graph_.ops.push_back({.layer = last_layer_,
                          .name = open.kind->name,
                          .outer = outer_has_rule ? open.outer->name : open.kind->name,
                          .category = open.kind->category,
                          .reads_weights = reads_weights,
                          .has_rule = outer_has_rule || !open.kind->writes,
                          .follows = open.kind->follows});
  }
  return at->second;
}

// Follows the region's dtype in place of the rule's if they differ: the model casts by hand.
void RangeTrace::follow_region(int index, const std::string& key) {
  StepGraph::Op& op = graph_.ops[static_cast<std::size_t>(index)];
  const auto seen = in_region_.find(key);
  if (seen == in_region_.end() || seen->second == gives_16_bits(op, kept_, low_)) return;
  ruled_[key] = op.follows;
  const bool any = std::ranges::any_of(
      op.inputs, [&](int value) { return bool(low_[static_cast<std::size_t>(value)]); });
  op.follows = !seen->second ? StepGraph::Follows::never
               : any         ? StepGraph::Follows::any
                             : StepGraph::Follows::always;
}

// Ops that have not run as often in the region are not the same ones: the rule counts for them.
void RangeTrace::compare_with_region() {
  for (const auto& [key, rule] : ruled_) {
    const std::string op = key.substr(0, key.rfind('|'));
    if (times_[op] != region_times_[op])
      graph_.ops[static_cast<std::size_t>(ops_.at(key))].follows = rule;
  }
  ruled_.clear();
}

int RangeTrace::new_value(std::string name) {
  graph_.values.push_back({.name = std::move(name)});
  low_.push_back(false);
  if (counts_) counts_->resize(graph_.values.size());
  return static_cast<int>(graph_.values.size()) - 1;
}

void RangeTrace::know(const at::Tensor& tensor, int value, std::int64_t serial, bool is_memory) {
  known_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                          Known{c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(
                                    tensor.getIntrusivePtr()),
                                value, serial, is_memory});
}

// A tensor that no op of this forward made is the batch's, the model's, or unknown.
int RangeTrace::value_read(const at::Tensor& tensor) {
  const auto known = known_.find(tensor.unsafeGetTensorImpl());
  if (known != known_.end()) return known->second.value;
  std::string name = kUnknown;
  for (const auto& [held, memory] : held_)
    if (memory.has_storage() && memory_of(memory) == memory_of(tensor)) name = held;
  const auto [at, is_new] = outside_.try_emplace(name, 0);
  if (is_new) at->second = new_value(name);
  know(tensor, at->second, -1);
  return at->second;
}

// Whether the tensor holds what an op of this forward gave, or the model's or the batch's numbers.
bool RangeTrace::is_result(const at::Tensor& tensor) const {
  const auto known = known_.find(tensor.unsafeGetTensorImpl());
  if (known == known_.end() || known->second.is_memory) return false;
  const auto unknown = outside_.find(kUnknown);
  return unknown == outside_.end() || known->second.value != unknown->second;
}

// Records the inputs that decide on the dtype of the op's result. Tensors without a dimension do
// not, together with others that have some.
void RangeTrace::read_inputs(StepGraph::Op& op, const Open& open) {
  op.inputs.clear();
  const auto counts = [&](const at::Tensor& tensor) {
    return is_traced(tensor) && tensor.dim() > 0;
  };
  const bool any = std::ranges::any_of(open.inputs, counts);
  const bool all_are_cast = op.category == OpCategory::lower_precision;
  for (const at::Tensor& input : open.inputs) {
    if (!is_traced(input) || (!all_are_cast && any && input.dim() == 0)) continue;
    const int value = value_read(input);
    if (std::ranges::find(op.inputs, value) == op.inputs.end()) op.inputs.push_back(value);
  }
}

void RangeTrace::cast_inputs(const StepGraph::Op& op, const Open& open) {
  if (category_of(op, kept_) != OpCategory::lower_precision) return;
  for (const at::Tensor& input : open.inputs) {
    if (!is_traced(input)) continue;
    const int value = value_read(input);
    if (low_[static_cast<std::size_t>(value)]) continue;
    count_forward(value, input);
    if (!graph_.values[static_cast<std::size_t>(value)].is_parameter) hook(value, input);
  }
}

// Counts each value once a batch: a weight is cast once, and views of a tensor hold the same
// numbers.
void RangeTrace::count_forward(int value, const at::Tensor& tensor) {
  if (!counts_->counted.insert(value).second) return;
  const std::lock_guard lock(counts_->mutex);
  counts_->before.add(value, tensor);
  counts_->after.counters[static_cast<std::size_t>(value)].add(tensor.detach().to(format_));
}

void RangeTrace::hook(int value, const at::Tensor& tensor) {
  const bool wanted = low_[static_cast<std::size_t>(value)] || counts_->counted.contains(value);
  if (!wanted || !tensor.requires_grad() || !counts_->hooked.insert(value).second) return;
  tensor.register_hook([to = counts_, value](const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    const Unobserved unobserved;
    const std::lock_guard lock(to->mutex);
    to->gradients.add(value, gradient);
  });
}

void RangeTrace::end_batch(const loop::StepView& view) {
  end_forward();
  compare_with_region();
  const Unobserved unobserved;
  if (view.ends_step)
    for (const auto& parameter : view.module.named_parameters()) {
      const int value = outside_.at("parameter " + parameter.key());
      if (counts_->counted.contains(value) && parameter.value().grad().defined())
        counts_->gradients.add(value, parameter.value().grad());
    }
  const Read before = read(counts_->before), after = read(counts_->after);
  const Read gradients = read(counts_->gradients);
  const double held_scale = view.scaler.is_enabled() ? view.scaler.get_scale() : 1;
  double greatest = 0;
  for (const double one : gradients.greatest) greatest = std::max(greatest, one / held_scale);
  const double scale =
      scale_.is_dynamic ? fitting_scale(scale_.begin, greatest, format_) : scale_.begin;
  least_scale_ = least_scale_ == 0 ? scale : std::min(least_scale_, scale);
  greatest_scale_ = std::max(greatest_scale_, scale);
  for (std::size_t i = 0; i < graph_.values.size(); ++i) {
    FormatLoss forward =
        format_loss(before.counts[i], after.counts[i], before.greatest[i], format_);
    FormatLoss gradient = format_loss(unscaled(gradients.counts[i], held_scale), scale,
                                      gradients.greatest[i] / held_scale, format_);
    for (FormatLoss* loss : {&forward, &gradient})
      if (loss->overflowed > 0) loss->first_overflow = view.step;
    graph_.values[i].forward += forward;
    graph_.values[i].gradient += gradient;
  }
}

}  // namespace demi::monitor

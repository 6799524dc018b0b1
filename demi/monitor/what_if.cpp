#include "demi/monitor/what_if.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "demi/core/error.h"
#include "demi/monitor/range_trace.h"
#include "demi/monitor/region_trial.h"
#include "demi/monitor/repeated_batch.h"
#include "demi/monitor/step_graph.h"
#include "demi/tensor/dtype.h"

namespace demi::monitor {
namespace {

void check(const WhatIfOptions& options) {
  if (!tensor::is_16_bit(options.format))
    refuse({.where = "monitor.WhatIf",
            .what = "a region computes in 16 bits",
            .seen = tensor::name_of(options.format),
            .accepted = "fp16, bf16"});
  if (!(options.loss_scale > 0) || options.loss_scale > std::numeric_limits<float>::max())
    refuse({.where = "monitor.WhatIf",
            .what = "the loss scale is not a positive FP32 number",
            .seen = fmt::format("{}", options.loss_scale),
            .accepted = "a positive number; 1: the loss is not scaled"});
}

std::string label_of(const StepGraph::Op& op) {
  return op.layer.empty() ? op.outer : op.outer + " in " + op.layer;
}

// The source of an overflow that the op passes on: its input, if that one overflows as well.
std::string origin_of(const StepGraph& graph, const PlacedTensor& tensor) {
  const auto value_of = [&](int i) -> const StepGraph::Value& {
    return graph.values[static_cast<std::size_t>(i)];
  };
  const StepGraph::Op& op = graph.ops[static_cast<std::size_t>(tensor.op)];
  if (tensor.place == TensorPlace::input && value_of(tensor.value).producer < 0)
    return value_of(tensor.value).name;
  const auto overflows = [&](int value) { return value_of(value).forward.overflowed > 0; };
  const auto from = tensor.place == TensorPlace::input ? std::ranges::find(op.inputs, tensor.value)
                                                       : std::ranges::find_if(op.inputs, overflows);
  if (tensor.place != TensorPlace::input && tensor.place != TensorPlace::output) return "";
  if (from == op.inputs.end()) return "";
  const StepGraph::Value& value = value_of(*from);
  return value.producer < 0 ? value.name
                            : label_of(graph.ops[static_cast<std::size_t>(value.producer)]);
}

double share(std::int64_t part, const FormatLoss& loss) {
  return loss.elements == 0 ? 0 : static_cast<double>(part) / static_cast<double>(loss.elements);
}

// Fates of the tensors by layer, op and place, in the order of training.
std::vector<TensorFate> fates_of(const StepGraph& graph, const KeptInFp32& kept) {
  std::vector<TensorFate> fates;
  std::map<std::tuple<std::string, std::string, TensorPlace>, std::size_t> known;
  for (const PlacedTensor& tensor : tensors_in_16_bits(graph, kept)) {
    const FormatLoss& loss = loss_of(graph, tensor);
    if (loss.elements == 0) continue;
    const StepGraph::Op& op = graph.ops[static_cast<std::size_t>(tensor.op)];
    const auto [at, is_new] =
        known.try_emplace(std::tuple(op.layer, op.outer, tensor.place), fates.size());
    if (is_new) fates.push_back({.layer = op.layer, .op = op.outer, .place = tensor.place});
    TensorFate& fate = fates[at->second];
    const bool overflowed = fate.loss.overflowed > 0;
    fate.loss += loss;
    if (!overflowed && loss.overflowed > 0) fate.from = origin_of(graph, tensor);
  }
  return fates;
}

std::vector<TensorFate> by_harm(std::vector<TensorFate> fates) {
  const auto rank = [](const TensorFate& fate) {
    const bool is_handed_on = fate.place == TensorPlace::output && !fate.from.empty();
    const int kind = fate.loss.overflowed == 0 ? 2 : is_handed_on ? 1 : 0;
    if (kind < 2) return std::tuple(kind, 0.0, 0.0, 0.0);
    return std::tuple(kind, -fate.loss.lost(), -share(fate.loss.flushed, fate.loss),
                      -share(fate.loss.subnormal, fate.loss));
  };
  std::ranges::stable_sort(fates, {}, rank);
  return fates;
}

}  // namespace

struct WhatIf::Impl {
  explicit Impl(const WhatIfOptions& with)
      : options(with),
        trace(with.format, with.policy, {with.loss_scale, with.dynamic_scale}),
        trial(with.format, {with.loss_scale, with.dynamic_scale}) {}

  const WhatIfOptions options;
  RangeTrace trace;
  RegionTrial trial;
  std::vector<Cure> tried;  // without which a batch in the region was not finite
  std::optional<Origin> uncured;
  std::optional<std::int64_t> diverged;
  std::int64_t batches = 0, first_step = 0, last_step = 0;

  std::vector<Cure> all_cures(const std::vector<Cure>& more = {}) const;
  OpPolicy policy_with(const std::vector<Cure>& cures) const;
  void try_batch(const loop::StepView& view);
};

// Cures for the numbers that were counted, then those for the batches that were tried.
std::vector<Cure> WhatIf::Impl::all_cures(const std::vector<Cure>& more) const {
  std::vector<Cure> known = tried;
  known.insert(known.end(), more.begin(), more.end());
  std::vector<Cure> all = find_cures(trace.graph(), with(trace.kept(), known));
  all.insert(all.end(), known.begin(), known.end());
  return all;
}

OpPolicy WhatIf::Impl::policy_with(const std::vector<Cure>& cures) const {
  OpPolicy policy = options.policy;
  for (const Cure& cure : cures) {
    if (cure.kind == Cure::Kind::part)
      policy.keep_part_in_fp32(cure.name);
    else
      policy.set(cure.name.find('.') == std::string::npos ? cure.name + "." : cure.name,
                 OpCategory::fp32, "what-if: " + to_string(cure, options.format));
  }
  return policy;
}

// Searches more cures if the batch is not finite with those that the numbers show: from the origin
// of the Inf or NaN.
void WhatIf::Impl::try_batch(const loop::StepView& view) {
  if (trial.is_finite(view, policy_with(all_cures()))) return;
  CureSearch search(trace.graph(), with(trace.kept(), all_cures()));
  std::vector<Cure> added;
  const auto is_finite = [&](const std::vector<Cure>& cures) {
    return trial.is_finite(view, policy_with(all_cures(cures)));
  };
  do {
    const auto origin = trial.find(view, policy_with(all_cures(added)));
    if (!origin || origin->vanishes) return;  // it does not repeat
    std::vector<Cure> more = search.next(*origin);
    if (more.empty()) {
      uncured = origin;
      return;
    }
    for (Cure& cure : more) {
      cure.made = cause_of(*origin);
      cure.step = view.step;
      added.push_back(std::move(cure));
    }
  } while (!is_finite(added));
  added = without_needless(std::move(added), is_finite);
  tried.insert(tried.end(), added.begin(), added.end());
}

WhatIf::WhatIf(WhatIfOptions options) {
  check(options);
  impl_ = std::make_unique<Impl>(options);
}
WhatIf::~WhatIf() = default;

void WhatIf::before_forward(const loop::StepView& view) {
  const Precision& precision = view.precision;
  if (precision.is_mixed() || precision.weights != c10::kFloat)
    refuse({.where = "monitor.WhatIf",
            .what = "the run is not FP32",
            .seen = precision.name,
            .accepted = "fp32, tf32",
            .advice = "let it look at an FP32 run, and use what it finds in this one"});
  Impl& impl = *impl_;
  if (impl.diverged) return;
  impl.trial.before_forward(view);
  if (impl.batches == 0) {
    impl.trace.begin_in_region(view);
    impl.trial.run(view, impl.options.policy);
  }
  impl.trace.begin(view);
}

void WhatIf::after_forward(const loop::StepView&, const at::Tensor&) { impl_->trace.end_forward(); }

void WhatIf::after_backward(const loop::StepView& view) {
  Impl& impl = *impl_;
  if (impl.diverged) return;
  std::vector<at::Tensor> numbers = gradients_of(view.module);
  numbers.push_back(view.loss);
  impl.trace.end_forward();
  if (!all_finite(numbers)) {  // whatever the format: its numbers are no answer
    impl.diverged = view.step;
    return;
  }
  impl.trace.end_batch(view);
  if (impl.batches++ == 0) impl.first_step = view.step;
  impl.last_step = view.step;
  impl.trial.limit_scale(impl.trace.least_scale());
  if (!impl.uncured) impl.try_batch(view);
}

WhatIfResult WhatIf::result() const {
  const RangeTrace& trace = impl_->trace;
  WhatIfResult result{.format = impl_->options.format,
                      .batches = impl_->batches,
                      .first_step = impl_->first_step,
                      .last_step = impl_->last_step,
                      .tensors = by_harm(fates_of(trace.graph(), trace.kept())),
                      .policy = impl_->options.policy,
                      .uncured = impl_->uncured,
                      .diverged = impl_->diverged};
  if (impl_->batches > 0) {
    result.least_scale = trace.least_scale();
    result.greatest_scale = trace.greatest_scale();
  }
  if (result.diverged) return result;
  result.cures = impl_->all_cures();
  result.policy = impl_->policy_with(result.cures);
  return result;
}

std::vector<std::string> WhatIfResult::fp32_parts() const {
  std::vector<std::string> parts;
  for (const Cure& cure : cures)
    if (cure.kind == Cure::Kind::part) parts.push_back(cure.name);
  return parts;
}

std::string WhatIfResult::policy_text() const {
  std::string text;
  for (const Cure& cure : cures)
    if (cure.kind == Cure::Kind::part) text += "# " + to_string(cure, format) + "\n";
  return text + policy.to_string();
}

}  // namespace demi::monitor

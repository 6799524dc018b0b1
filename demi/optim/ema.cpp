#include "demi/optim/ema.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "demi/core/error.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/optim/export_fp32.h"
#include "demi/optim/optimizer.h"
#include "demi/tensor/parallel.h"
#include "demi/tensor/version.h"

namespace demi {
namespace {

/// fp32 on the CPU: one pass, the kernels' formula.
bool lerp_in_one_pass(at::Tensor& average, const at::Tensor& weight, float part) {
  const kernels::CpuKernels* kernels = kernels::cpu_kernels();
  const bool fits = kernels && average.is_cpu() && average.scalar_type() == at::kFloat &&
                    weight.scalar_type() == at::kFloat && average.is_non_overlapping_and_dense() &&
                    average.strides() == weight.strides();
  if (!fits) return false;
  float* to = average.mutable_data_ptr<float>();
  const float* from = weight.const_data_ptr<float>();
  at::parallel_for(0, average.numel(), tensor::kElementsPerThread, [&](int64_t begin, int64_t end) {
    kernels->lerp(to + begin, from + begin, part, end - begin);
  });
  return true;
}

/// Assigns unless `skipped` is defined and not 0.
void assign_unless(const at::Tensor& skipped, at::Tensor& place, const at::Tensor& value) {
  place.copy_(skipped.defined() ? at::where(skipped.to(place.device()) != 0, place, value) : value);
}

using Steps = std::vector<const StepResult*>;

/// fp32, (): not 0 if all of these steps were skipped. Undefined: the host knows that one was
/// taken. Nothing: the host knows that none was.
std::optional<at::Tensor> all_skipped(const Steps& steps) {
  at::Tensor skipped;
  for (const StepResult* step : steps) {
    if (!step->is_on_device()) {
      if (!step->skipped()) return at::Tensor();
      continue;
    }
    const at::Tensor found = step->found_inf();
    skipped = skipped.defined() ? at::minimum(skipped, found.to(skipped.device())) : found;
  }
  if (!skipped.defined()) return std::nullopt;
  return skipped;
}

/// The fp32 numbers that the optimizer of a step updates for the tensor, or undefined.
at::Tensor updated_weight(const std::vector<StepResult>& results, const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kHalf && tensor.scalar_type() != at::kBFloat16) return {};
  for (const StepResult& result : results) {
    if (!result.optimizer()) continue;
    const at::Tensor fp32 = optim::fp32_weight(*result.optimizer(), tensor);
    if (fp32.defined()) return fp32;
    const auto* ours = dynamic_cast<const optim::Optimizer*>(result.optimizer());
    if (ours && !ours->keeps_state_of(tensor))
      throw UsageError({.where = "optim.EMA",
                        .what = "another process keeps what a 16-bit weight is trained as",
                        .seen = c10::str("shape ", tensor.sizes()),
                        .accepted = "an optimizer with its whole state, or fp32 weights",
                        .advice = "leave out ShardedOptimizerState, or the average"});
  }
  return {};
}

/// The steps of the optimizers that hold each parameter.
std::unordered_map<const at::TensorImpl*, Steps> steps_by_parameter(
    const std::vector<StepResult>& results) {
  std::unordered_map<const at::TensorImpl*, Steps> steps;
  for (const StepResult& result : results) {
    if (!result.optimizer()) continue;
    for (const auto& group : result.optimizer()->param_groups())
      for (const auto& parameter : group.params())
        steps[parameter.unsafeGetTensorImpl()].push_back(&result);
  }
  return steps;
}

}  // namespace

EMA::EMA(torch::nn::Module& module, double decay) : decay_(decay) {
  if (!(decay >= 0 && decay <= 1))
    throw UsageError({.where = "optim.EMA",
                      .what = "decay is out of range",
                      .seen = std::to_string(decay),
                      .accepted = "0 to 1"});
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), false);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), true);
}

void EMA::add(const std::string& name, const at::Tensor& tensor, bool is_buffer) {
  for (Entry& entry : entries_) {
    if (entry.tensor.is_same(tensor)) {
      entry.names.push_back(name);
      return;
    }
  }
  const auto dtype =
      is_buffer ? tensor.scalar_type() : at::promote_types(tensor.scalar_type(), at::kFloat);
  const at::Tensor average = tensor.detach().to(dtype, /*non_blocking=*/false, /*copy=*/true);
  if (!averages_.emplace(name, average).second)
    throw UsageError({.where = "optim.EMA",
                      .what = "a parameter and a buffer have the same name",
                      .seen = name,
                      .accepted = "names that differ",
                      .advice = "register the buffer under another name"});
  entries_.push_back({.tensor = tensor, .is_buffer = is_buffer, .names = {name}});
  if (!is_buffer) observe(tensor);
}

void EMA::require_replaceable(const tensor::Replacement&) const {
  require_not_swapped("optim::replace_parameter()");
}

void EMA::replace(const tensor::Replacement& replacement) {
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    if (!entry.tensor.is_same(replacement.old)) continue;
    entry.tensor = replacement.by;
    at::Tensor& average = averages_.at(entry.names.front());
    const at::Tensor rows = tensor::gathered(replacement, average, replacement.by.detach());
    average = at::empty_like(replacement.by, average.options()).copy_(rows);
  }
}

void EMA::update() {
  require_not_swapped("update()");
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries_) update_entry(entry, {}, {});
}

void EMA::update(const StepResult& result) {
  require_not_swapped("update()");
  const at::NoGradGuard no_grad;
  if (const auto skipped = all_skipped({&result}))
    for (Entry& entry : entries_)
      update_entry(entry, *skipped, updated_weight({result}, entry.tensor));
}

void EMA::update(const std::vector<StepResult>& results) {
  if (results.size() == 1) return update(results.front());
  require_not_swapped("update()");
  const at::NoGradGuard no_grad;
  const auto by_parameter = steps_by_parameter(results);
  Steps all;
  for (const StepResult& result : results) all.push_back(&result);
  for (Entry& entry : entries_) {
    const auto held = by_parameter.find(entry.tensor.unsafeGetTensorImpl());
    if (const auto skipped = all_skipped(held == by_parameter.end() ? all : held->second))
      update_entry(entry, *skipped, updated_weight(results, entry.tensor));
  }
}

void EMA::update_entry(Entry& entry, const at::Tensor& skipped, const at::Tensor& fp32) {
  at::Tensor& average = averages_.at(entry.names.front());
  const at::Tensor tensor = fp32.defined() ? fp32 : entry.tensor;
  // It follows its tensor to another device (module->to), never to a narrower dtype.
  const auto dtype = at::promote_types(average.scalar_type(), tensor.scalar_type());
  if (average.device() != tensor.device() || average.scalar_type() != dtype)
    average = average.to(tensor.device(), dtype);
  if (entry.is_buffer) return assign_unless(skipped, average, tensor);
  const double part = 1 - decay_;
  if (!skipped.defined() && lerp_in_one_pass(average, tensor, static_cast<float>(part))) return;
  assign_unless(skipped, average, at::lerp(average, tensor.to(average.scalar_type()), part));
}

void EMA::swap() {
  if (swapped_) {
    require_in_place();
    return restore();
  }
  const at::NoGradGuard no_grad;
  // Parks weights in their own dtypes: an average does not go through 16 bits and back. All are
  // parked before any is written to, since tensors may share memory.
  for (Entry& entry : entries_) entry.parked = entry.tensor.detach().clone();
  for (Entry& entry : entries_) entry.tensor.copy_(averages_.at(entry.names.front()));
  for (Entry& entry : entries_)
    entry.version = tensor::version_of(*entry.tensor.unsafeGetTensorImpl());
  swapped_ = true;
}

void EMA::restore() {
  if (!swapped_) return;
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries_) entry.tensor.copy_(entry.parked);
  for (Entry& entry : entries_) entry.parked.reset();
  swapped_ = false;
}

/// Another EMA that was put in place and went back leaves the same numbers under another version.
/// Buffers may change: an evaluation can renew running statistics.
void EMA::require_in_place() const {
  const at::NoGradGuard no_grad;
  for (const Entry& entry : entries_) {
    if (entry.is_buffer || entry.version == tensor::version_of(*entry.tensor.unsafeGetTensorImpl()))
      continue;
    const at::Tensor average = averages_.at(entry.names.front()).to(entry.tensor.options());
    if (at::allclose(entry.tensor.detach(), average, 0, 0, /*equal_nan=*/true)) continue;
    throw UsageError(
        {.where = "optim.EMA.swap",
         .what = "the weights were written to while the averages were in their place",
         .seen = entry.names.front(),
         .accepted = "evaluation alone between two calls",
         .advice = "put back first whatever was put in place last; restore() brings the weights "
                   "back without what was written"});
  }
}

void EMA::require_not_swapped(const char* what) const {
  if (!swapped_) return;
  throw UsageError({.where = "optim.EMA",
                    .what = "the averages are in the place of the weights",
                    .seen = what,
                    .accepted = "swap() back and evaluation",
                    .advice = "call swap() first, which brings the weights back"});
}

EMA::InPlace::InPlace(EMA& ema) : ema_(ema) {
  ema_.require_not_swapped("InPlace");
  ema_.swap();
}

std::map<std::string, at::Tensor>::const_iterator EMA::find(
    const Entry& entry, const std::map<std::string, at::Tensor>& averages) {
  for (const std::string& name : entry.names)
    if (const auto found = averages.find(name); found != averages.end()) return found;
  return averages.end();
}

void EMA::check(const std::map<std::string, at::Tensor>& averages) const {
  require_not_swapped("load()");
  const auto refuse = [](const std::string& seen) {
    throw UsageError({.where = "optim.EMA.load",
                      .what = "the averages are those of another model",
                      .seen = seen,
                      .accepted = "names and shapes of this module"});
  };
  std::unordered_set<std::string> names;
  for (const Entry& entry : entries_) {
    names.insert(entry.names.begin(), entry.names.end());
    const auto found = find(entry, averages);
    if (found == averages.end() || found->second.sizes() != entry.tensor.sizes())
      refuse(entry.names.front());
  }
  for (const auto& [name, average] : averages)
    if (!names.contains(name)) refuse(name);
}

void EMA::load(std::map<std::string, at::Tensor> averages) {
  check(averages);
  const at::NoGradGuard no_grad;
  for (const Entry& entry : entries_) {
    const auto found = find(entry, averages);
    averages_.at(entry.names.front()).copy_(found->second);
    averages.erase(found);
  }
}

void EMA::restart() {
  require_not_swapped("restart()");
  const at::NoGradGuard no_grad;
  for (const Entry& entry : entries_) averages_.at(entry.names.front()).copy_(entry.tensor);
}

}  // namespace demi

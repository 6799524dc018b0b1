#include "demi/optim/ema.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include "demi/core/error.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/tensor/parallel.h"

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

/// Moves an average to the device of its tensor (after module->to), never to a narrower dtype.
void follow(at::Tensor& average, const at::Tensor& tensor) {
  const auto dtype = at::promote_types(average.scalar_type(), tensor.scalar_type());
  if (average.device() != tensor.device() || average.scalar_type() != dtype)
    average = average.to(tensor.device(), dtype);
}

/// Assigns unless `skipped` is defined and not 0.
void assign_unless(const at::Tensor& skipped, at::Tensor& place, const at::Tensor& value) {
  place.copy_(skipped.defined() ? at::where(skipped != 0, place, value) : value);
}

}  // namespace

EMA::EMA(torch::nn::Module& module, double decay) : decay_(decay) {
  if (!(decay >= 0 && decay <= 1))
    throw UsageError({.where = "optim.EMA",
                      .what = "decay is out of range",
                      .seen = std::to_string(decay),
                      .accepted = "0 to 1"});
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    weights_[item.key()] = item.value();
    const auto dtype = at::promote_types(item.value().scalar_type(), at::kFloat);
    averages_[item.key()] = item.value().detach().to(dtype, /*non_blocking=*/false, /*copy=*/true);
  }
  for (const auto& item : module.named_buffers()) {
    buffers_[item.key()] = item.value();
    averages_[item.key()] = item.value().clone();
  }
}

void EMA::update() { update_unless({}); }

void EMA::update(const StepResult& result) {
  if (result.is_on_device())
    update_unless(result.found_inf());
  else if (!result.skipped())
    update();
}

void EMA::update_unless(const at::Tensor& skipped) {
  const at::NoGradGuard no_grad;
  const double part = 1 - decay_;
  for (auto& [name, weight] : weights_) {
    at::Tensor& average = averages_[name];
    follow(average, weight);
    if (!skipped.defined() && lerp_in_one_pass(average, weight, static_cast<float>(part))) continue;
    assign_unless(skipped, average, at::lerp(average, weight.to(average.scalar_type()), part));
  }
  for (auto& [name, buffer] : buffers_) {
    follow(averages_[name], buffer);
    assign_unless(skipped, averages_[name], buffer);
  }
}

void EMA::swap() {
  const at::NoGradGuard no_grad;
  for (auto* all : {&weights_, &buffers_}) {
    for (auto& [name, tensor] : *all) {
      at::Tensor& average = averages_[name];
      // Into tensors of their own dtypes: an average does not go through 16 bits and back.
      auto& parked = parked_[name];
      if (parked.defined()) {
        tensor.copy_(parked);
        parked.reset();
      } else {
        parked = tensor.detach().clone();
        tensor.copy_(average);
      }
    }
  }
}

void EMA::check(const std::map<std::string, at::Tensor>& averages) const {
  for (const auto& [name, average] : averages_) {
    const auto found = averages.find(name);
    if (found == averages.end() || found->second.sizes() != average.sizes() ||
        averages.size() != averages_.size())
      throw UsageError({.where = "optim.EMA.load",
                        .what = "the averages are those of another model",
                        .seen = name,
                        .accepted = "names and shapes of this module"});
  }
}

void EMA::load(std::map<std::string, at::Tensor> averages) {
  check(averages);
  const at::NoGradGuard no_grad;
  for (auto& [name, average] : averages_) average.copy_(averages.extract(name).mapped());
}

}  // namespace demi

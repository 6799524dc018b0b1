#include "demi/step/state_check.h"

#include <torch/types.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/kernels/rule_info.h"
#include "demi/step/coded_state.h"
#include "demi/step/coded_weight.h"

namespace demi::optim {
namespace {

[[noreturn]] void refuse_state(const std::string& what, const std::string& seen,
                               const std::string& accepted) {
  throw UsageError({.where = "optim.Optimizer",
                    .what = what,
                    .seen = seen,
                    .accepted = accepted,
                    .advice = "load what was saved from the same model and optimizer, or put such "
                              "a tensor there"});
}

std::string text_of(const at::Tensor& tensor) {
  return c10::str(tensor.toString(), " ", tensor.sizes());
}

/// A state of a parameter, with its name for messages.
struct Named {
  const at::Tensor& tensor;
  std::string name;

  void require(bool fits, const std::string& accepted) const {
    if (!fits)
      refuse_state("the state does not fit its parameter", name + " " + text_of(tensor), accepted);
  }
};

bool has_elements(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_meta();
}

void check_count(const Named& count) {
  const at::Tensor& number = count.tensor;
  count.require(has_elements(number) && number.numel() == 1 && !number.is_complex(),
                "one number, 0 or more");
  // The host reads no device for it.
  if (number.is_cpu() && !(number.item<double>() >= 0))
    refuse_state("a step count in the state is not a whole number of 0 or more",
                 c10::str(count.name, " ", number.item<double>()), "a whole number, 0 or more");
}

void check_numbers(const Named& state, const at::Tensor& parameter, bool may_be_coded) {
  const at::Tensor& values = state.tensor;
  const bool is_number = values.is_floating_point() || (may_be_coded && codec_of(values));
  state.require(has_elements(values) && values.sizes() == parameter.sizes() && is_number,
                c10::str("floating point numbers of the parameter's shape, ", parameter.sizes()));
}

void check_scales(const Named& scales, const at::Tensor& parameter) {
  const int64_t groups = kernels::scales_of(kernels::Codec::root, parameter.numel());
  scales.require(has_elements(scales.tensor) && scales.tensor.dim() == 1 &&
                     scales.tensor.numel() == groups && scales.tensor.is_contiguous() &&
                     scales.tensor.scalar_type() == at::kBFloat16,
                 c10::str("bf16 scales, one for 32 elements: ", groups));
}

void check_remainder(const Named& rest, const at::Tensor& parameter) {
  rest.require(has_elements(rest.tensor) && rest.tensor.sizes() == parameter.sizes() &&
                   mode_of_remainder(rest.tensor.scalar_type()),
               c10::str("int16, uint16 or int8 of the parameter's shape, ", parameter.sizes()));
}

/// A state in 8 bits and its scales are there together, and are of one kind.
void check_codes(const kernels::State& of, const at::Tensor& values, const at::Tensor& scales,
                 const std::string& name) {
  const auto codec = values.defined() ? codec_of(values) : std::nullopt;
  const bool grouped = codec && has_scales(*codec);
  const bool fits =
      !grouped || *codec == (of.is_square ? kernels::Codec::root : kernels::Codec::softsign);
  if (grouped == scales.defined() && fits) return;
  refuse_state("a state of 8 bits and its scales do not belong together",
               c10::str(name, " ", values.defined() ? values.toString() : "missing",
                        scales.defined() ? ", with scales" : ", without scales"),
               of.is_square ? "uint8 with scales, or floating point numbers without"
                            : "int8 with scales, or floating point numbers without");
}

/// A tensor that belongs to no state of the rule is that of another rule.
void check_names(const ParamState& state, kernels::UpdateRule rule, const std::string& prefix) {
  const auto states = kernels::info_of(rule).states;
  for (const auto& [name, tensor] : state.tensors()) {
    const auto is_of = [&, &seen = name](const kernels::State& one) {
      return seen == one.name || seen == scale_name(one.name);
    };
    if (name == "step" || name == "master" || name == kRemainder ||
        std::ranges::any_of(states, is_of))
      continue;
    std::string known = "step, master, remainder";
    for (const kernels::State& one : states) known += std::string(", ") + one.name;
    throw UsageError({.where = "optim.Optimizer",
                      .what = "the state of a parameter is that of another update rule",
                      .seen = prefix + name,
                      .accepted = known,
                      .advice = "erase the parameter's state before its group changes its rule"});
  }
}

}  // namespace

void check_state(const ParamState& state, const at::Tensor& parameter, kernels::UpdateRule rule,
                 const std::string& prefix) {
  check_names(state, rule, prefix);
  ParamState tensors = state;  // which share their memory
  const auto named = [&](const char* name) { return Named{tensors[name], prefix + name}; };
  if (state.step.defined()) check_count(named("step"));
  if (state.master.defined()) check_numbers(named("master"), parameter, /*may_be_coded=*/false);
  if (state.remainder.defined()) check_remainder(named(kRemainder), parameter);
  for (const kernels::State& one : kernels::info_of(rule).states) {
    const at::Tensor values = tensors[one.name], scales = tensors[scale_name(one.name)];
    const std::string name = prefix + one.name;
    if (scales.defined()) check_scales({scales, prefix + scale_name(one.name)}, parameter);
    if (values.defined() && one.form == kernels::StateForm::scalar) {
      Named{values, name}.require(
          has_elements(values) && values.numel() == 1 && values.is_floating_point(),
          "one finite number in floating point");
      continue;
    }
    if (values.defined()) check_numbers({values, name}, parameter, /*may_be_coded=*/true);
    check_codes(one, values, scales, name);
  }
}

}  // namespace demi::optim

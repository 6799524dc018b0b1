#include "demi/optim/saved_state.h"

#include <c10/util/Type.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <typeinfo>

#include "demi/core/error.h"
#include "demi/kernels/rule_info.h"
#include "demi/optim/rule_options.h"
#include "demi/step/coded_state.h"
#include "demi/step/coded_weight.h"
#include "demi/step/member.h"
#include "demi/step/norm_guard.h"
#include "demi/step/state_check.h"
#include "demi/tensor/dtype.h"

namespace demi::optim {

namespace {

using torch::serialize::InputArchive;

/// An archive's NAME is a state in FP32; NAME_coded is the coded state that it was decoded from.
constexpr std::string_view kCoded = "_coded";

std::string scheduled_rates_of(size_t group) { return "scheduled_rates." + std::to_string(group); }

[[noreturn]] void refuse_state(const std::string& what, const std::string& seen,
                               const std::string& accepted) {
  throw UsageError({.where = "optim.Optimizer",
                    .what = what,
                    .seen = seen,
                    .accepted = accepted,
                    .advice = "load what was saved from the same model and optimizer"});
}

/// The state whose scales have this name, or null.
const kernels::State* find_scaled(const Rule& rule, const std::string& name) {
  for (const kernels::State& state : kernels::info_of(rule.id).states)
    if (name == scale_name(state.name)) return &state;
  return nullptr;
}

const kernels::State* find_state(const Rule& rule, const std::string& name) {
  for (const kernels::State& state : kernels::info_of(rule.id).states)
    if (name == state.name) return &state;
  return nullptr;
}

/// Reads the count of updates or steps taken. Python's optimizers count in floating point.
int64_t read_count(const std::string& name, const at::Tensor& count) {
  if (count.numel() != 1)
    refuse_state("a step count in the state is not a whole number of 0 or more",
                 name + " " + c10::str(count.sizes()), "one number, 0 or more");
  const double value = count.item().toDouble();
  if (!(value >= 0 && value <= 0x1p53 && value == std::floor(value)))
    refuse_state("a step count in the state is not a whole number of 0 or more",
                 name + " " + c10::str(value), "a whole number, 0 or more");
  return static_cast<int64_t>(value);
}

double read_scalar(const std::string& name, const at::Tensor& number) {
  if (number.numel() != 1 || !number.is_floating_point() || !std::isfinite(number.item<double>()))
    refuse_state("the state does not fit its parameter",
                 c10::str(name, " ", number.toString(), " ", number.sizes()),
                 "one finite number in floating point");
  return number.item<double>();
}

/// The tensor is only read: check_state() says whether it fits.
void put(ParamState& state, const std::string& key, const std::string& name,
         const at::Tensor& tensor, const Rule& rule) {
  const kernels::State* known = find_state(rule, name);
  if (!known && !find_scaled(rule, name) && name != "step" && name != "master" &&
      name != kRemainder)
    refuse_state("the state has an entry that this optimizer does not know", key,
                 "the state of " + rule.name);
  if (name == "step")
    state.step = at::scalar_tensor(read_count(key, tensor), at::kLong);
  else if (known && known->form == kernels::StateForm::scalar)
    state[name] = at::scalar_tensor(read_scalar(key, tensor), at::kFloat);
  else
    state[name] = tensor.detach().clone();
}

void require_moments(ParamState& state, const std::string& prefix, const Rule& rule) {
  if (!state.step.defined() && state.tensors().size() == 1 && state.master.defined())
    return;  // before its first step: a weight that was put there, and nothing else
  for (const kernels::State& one : kernels::info_of(rule.id).states) {
    // A state that only some groups keep is made at the next step.
    if (one.kept_if != 0 || state[one.name].defined()) continue;
    refuse_state(std::string("the state has no ") + one.name,
                 "parameter " + prefix.substr(0, prefix.size() - 1), "the state of " + rule.name);
  }
}

}  // namespace

LoadedState read_state(NamedTensors tensors, const Rules& rules,
                       const std::vector<at::Tensor>& parameters, const std::vector<bool>& held) {
  LoadedState loaded;
  const size_t entries = tensors.size();
  for (const at::Tensor& parameter : parameters) {
    const std::string prefix = std::to_string(loaded.of.size()) + ".";
    const Rule& rule = *rules[loaded.of.size()];
    auto state = std::make_unique<ParamState>();
    const size_t before = tensors.size();
    for (auto it = tensors.lower_bound(prefix);
         it != tensors.end() && it->first.starts_with(prefix); it = tensors.erase(it))
      put(*state, it->first, it->first.substr(prefix.size()), it->second, rule);
    if (tensors.size() == before) state.reset();
    if (state) require_moments(*state, prefix, rule);
    if (state) check_state(*state, parameter, rule.id, prefix);
    if (!held[loaded.of.size()]) state.reset();
    loaded.of.push_back(std::move(state));
  }
  if (const auto taken = tensors.extract("taken"))
    loaded.taken = read_count("taken", taken.mapped());
  if (!tensors.empty())
    refuse_state("the state is that of more parameters", std::to_string(entries) + " entries",
                 std::to_string(parameters.size()) + " parameters");
  return loaded;
}

namespace {

void take_adam_state(const auto& state, NamedTensors& tensors) {
  tensors["0.step"] = at::scalar_tensor(state.step(), at::kLong);
  for (const auto& [name, tensor] :
       {std::pair("0.exp_avg", state.exp_avg()), std::pair("0.exp_avg_sq", state.exp_avg_sq()),
        std::pair("0.max_exp_avg_sq", state.max_exp_avg_sq())})
    if (tensor.defined()) tensors[name] = tensor;
}

}  // namespace

std::unique_ptr<ParamState> own_state(const torch::optim::OptimizerParamState& state,
                                      const Rule& rule, const at::Tensor& parameter) {
  NamedTensors tensors;
  if (const auto* mine = dynamic_cast<const ParamState*>(&state)) {
    return std::make_unique<ParamState>(*mine);
  }
  if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) {
    take_adam_state(*adam, tensors);
  } else if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    take_adam_state(*adamw, tensors);
  } else if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    if (sgd->momentum_buffer().defined()) {
      tensors["0.momentum_buffer"] = sgd->momentum_buffer();
      tensors["0.step"] = at::scalar_tensor(int64_t{1}, at::kLong);  // as an archive without one
    }
  } else if (std::map<std::string, at::Tensor> found;
             rule.state_of_libtorch && rule.state_of_libtorch(state, found)) {
    for (const auto& [name, tensor] : found)
      if (tensor.defined()) tensors["0." + name] = tensor;
  } else {
    refuse_state("a parameter's state in state() is of a type that this optimizer does not know",
                 c10::demangle(typeid(state).name()),
                 "demi::optim::ParamState, or torch::optim's of " + rule.name);
  }
  const at::NoGradGuard no_grad;
  return std::move(read_state(std::move(tensors), {&rule}, {parameter}, {true}).of.front());
}

std::map<size_t, at::Tensor> take_scheduled_rates(NamedTensors& tensors, size_t groups) {
  std::map<size_t, at::Tensor> rates;
  for (size_t g = 0; g < groups; ++g) {
    const std::string name = scheduled_rates_of(g);
    const auto taken = tensors.extract(name);
    if (!taken) continue;
    const at::Tensor& found = taken.mapped();
    const bool fits = found.dim() == 1 && found.numel() > 0 && found.scalar_type() == at::kDouble;
    const at::Tensor values = fits ? found.detach().cpu().clone() : found;
    if (!fits || !(values.isfinite() & (values >= 0)).all().item<bool>())
      refuse_state("scheduled learning rates in the state are out of range",
                   c10::str(name, " ", found.toString(), " ", found.sizes()),
                   "one fp64 number a step, 0 or more, finite");
    rates[g] = values;
  }
  return rates;
}

namespace {

const char* form_of(const at::Tensor& state) {
  const auto codec = codec_of(state);
  return !codec ? "fp32" : has_scales(*codec) ? "int8" : "bf16";
}

/// The error of states that are kept in another form than they were saved in.
struct CodingError {
  int64_t states = 0;
  double greatest = 0;
  std::string saved, kept;

  void add(const ParamState& state, const kernels::State& description, kernels::Codec codec,
           const at::Tensor& parameter) {
    const at::Tensor values = decoded(state, description.name);
    ParamState coded = state;
    if (!values.defined() || codec_of(coded[description.name]) == codec) return;
    saved = form_of(coded[description.name]);
    keep_coded(coded, description.name, codec, values, parameter);
    kept = form_of(coded[description.name]);
    ++states;
    const at::Tensor error = decoded(coded, description.name) - values.to(parameter.device());
    greatest = std::max(greatest, error.abs().max().item<double>());
  }
};

}  // namespace

void warn_of_coding(const LoadedState& loaded, const std::vector<at::Tensor>& parameters,
                    const std::vector<kernels::Group>& groups, Moments moments) {
  const at::NoGradGuard no_grad;
  CodingError error;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!loaded.of[i]) continue;
    const auto states = kernels::info_of(groups[i].rule).states;
    const std::uint32_t coded = states_coded(parameters[i], groups[i], moments);
    for (size_t k = 0; k < states.size(); ++k)
      if ((coded >> k & 1U) != 0)
        error.add(*loaded.of[i], states[k], codec_for(states[k], moments, parameters[i]),
                  parameters[i]);
  }
  if (error.states == 0) return;
  TORCH_WARN("[optim.Optimizer] ", error.states, " states that were saved in ", error.saved,
             " are kept in ", error.kept,
             " from here on (StepOptions::moments): the greatest error of one number is ",
             error.greatest);
}

namespace {

/// The name of the form in which the weight is kept beside its parameter.
const char* form_of_weight(const ParamState& state) {
  if (state.master.defined()) return name_of(WeightMode::master);
  if (!state.remainder.defined()) return "no more than the parameter";
  return name_of(*mode_of_remainder(state.remainder.scalar_type()));
}

const char* form_of_weight(const at::Tensor& parameter, WeightMode mode) {
  const bool is_alone =
      !tensor::is_16_bit(parameter.scalar_type()) || mode == WeightMode::stochastic;
  return is_alone ? "no more than the parameter" : name_of(mode);
}

void require_same_form(const std::string& what, const std::string& saved, const std::string& kept) {
  if (saved == kept) return;
  throw UsageError({.where = "optim.Optimizer",
                    .what = "a strict load would keep " + what + " in another form",
                    .seen = "saved as " + saved,
                    .accepted = kept,
                    .advice = "load it into an optimizer with the weight_mode and moments that it "
                              "was saved with, or without StepOptions::strict_state"});
}

}  // namespace

void require_own_forms(const LoadedState& loaded, const std::vector<at::Tensor>& parameters,
                       const std::vector<kernels::Group>& groups, const StepOptions& options) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!loaded.of[i]) continue;
    const auto states = kernels::info_of(groups[i].rule).states;
    ParamState& state = *loaded.of[i];
    const std::string number = std::to_string(i);
    require_same_form("the weight of parameter " + number, form_of_weight(state),
                      form_of_weight(parameters[i], options.weight_mode));
    const std::uint32_t coded = states_coded(parameters[i], groups[i], options.moments);
    for (size_t k = 0; k < states.size(); ++k) {
      const at::Tensor& values = state[states[k].name];
      if (!values.defined() || states[k].form == kernels::StateForm::scalar) continue;
      auto kept = parameters[i].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      if ((coded >> k & 1U) != 0)
        kept = dtype_of(codec_for(states[k], options.moments, parameters[i]));
      require_same_form(std::string(states[k].name) + " of parameter " + number,
                        tensor::name_of(values.scalar_type()), tensor::name_of(kept));
    }
  }
}

at::Tensor take_accepted_norms(NamedTensors& tensors) {
  const auto taken = tensors.extract(kAcceptedNorms);
  if (!taken) return {};
  check_window(taken.mapped());
  return taken.mapped();
}

namespace {

template <class Value>
Value required(InputArchive& archive, const std::string& name) {
  Value value;
  if (!archive.try_read(name, value))
    refuse_state("the archive is not that of an optimizer", "no \"" + name + "\"",
                 "what torch::save wrote of one");
  return value;
}

int64_t required_size(InputArchive& archive, const std::string& name) {
  return read_count(name, required<c10::IValue>(archive, name).toTensor());
}

void check_rules(InputArchive& archive, const Rules& rules) {
  c10::IValue written;
  if (!archive.try_read("rule", written) || written.toStringRef() == name_of(rules)) return;
  refuse_state("the archive is that of another optimizer", written.toStringRef(), name_of(rules));
}

/// torch::optim's optimizers have no `maximize`.
void check_options(InputArchive& archive, const Rule& rule) {
  std::vector<std::string> names;
  for (const auto& [name, value] : rule.list(*rule.fresh())) names.emplace_back(name);
  std::vector<std::string> there = archive.keys();
  for (const std::string& name : there)
    if (std::count(names.begin(), names.end(), name) == 0)
      refuse_state("the archive is that of another optimizer", "option " + name, rule.name);
  for (const std::string& name : names)
    if (name != "maximize" && std::count(there.begin(), there.end(), name) == 0)
      refuse_state("the archive is that of another optimizer", "no option " + name, rule.name);
}

at::Tensor as_tensor(const std::string& key, const c10::IValue& value) {
  if (value.isInt()) return at::scalar_tensor(value.toInt(), at::kLong);
  if (!value.isTensor())
    refuse_state("the state has an entry that is no tensor", key + " " + value.tagKind(),
                 "tensors");
  return value.toTensor();
}

/// torch::optim::SGD counts no steps. demi's SGD uses a saved buffer only if the count is above 0.
void read_parameter(InputArchive& archive, const std::string& prefix, NamedTensors& tensors) {
  bool counted = false, any = false;
  std::vector<std::string> names = archive.keys();
  std::ranges::sort(names);  // codes come after the FP32 numbers whose place they take
  for (const std::string& name : names) {
    const at::Tensor tensor = as_tensor(prefix + name, required<c10::IValue>(archive, name));
    if (!tensor.defined()) continue;
    const bool is_coded = name.ends_with(kCoded);
    tensors[prefix + (is_coded ? name.substr(0, name.size() - kCoded.size()) : name)] = tensor;
    any = true;
    counted |= name == "step";
  }
  if (any && !counted) tensors[prefix + "step"] = at::scalar_tensor(int64_t{1}, at::kLong);
}

void read_taken(InputArchive& archive, NamedTensors& tensors) {
  c10::IValue taken;
  if (archive.try_read("taken", taken)) {
    tensors["taken"] = as_tensor("taken", taken);
    return;
  }
  int64_t most = 0;
  for (const auto& [key, tensor] : tensors)
    if (key.ends_with(".step")) most = std::max(most, read_count(key, tensor));
  tensors["taken"] = at::scalar_tensor(most, at::kLong);
}

Archived read_groups(InputArchive& archive, const Rules& rules,
                     const std::vector<size_t>& group_sizes) {
  auto states = required<InputArchive>(archive, "state");
  auto groups = required<InputArchive>(archive, "param_groups");
  const int64_t count = required_size(groups, "param_groups/size");
  if (count != std::ssize(group_sizes))
    refuse_state("the archive has another number of parameter groups", std::to_string(count),
                 std::to_string(group_sizes.size()));
  Archived read;
  size_t parameter = 0;
  for (size_t g = 0; g < group_sizes.size(); ++g) {
    auto group = required<InputArchive>(groups, "param_groups/" + std::to_string(g));
    const int64_t size = required_size(group, "params/size");
    if (size != static_cast<int64_t>(group_sizes[g]))
      refuse_state("the archive has another number of parameters", c10::str(size, " in group ", g),
                   std::to_string(group_sizes[g]));
    for (int64_t i = 0; i < size; ++i) {
      const std::string key =
          required<c10::IValue>(group, "params/" + std::to_string(i)).toStringRef();
      InputArchive state;
      const std::string prefix = std::to_string(parameter++) + ".";
      if (states.try_read(key, state)) read_parameter(state, prefix, read.tensors);
    }
    auto archived = required<InputArchive>(group, "options");
    check_options(archived, *rules[g]);
    read.options.push_back(rules[g]->fresh());
    read_options(archived, *rules[g], *read.options.back());
  }
  return read;
}

using torch::serialize::OutputArchive;

/// LibTorch's optimizers read the step count as a number, and states in FP32. States in fewer bytes
/// are written, too, for demi's.
void write_parameter(OutputArchive& states, const std::string& key, const std::string& prefix,
                     const Rule& rule, const NamedTensors& tensors) {
  OutputArchive state(states.compilation_unit());
  auto it = tensors.lower_bound(prefix);
  if (it == tensors.end() || !it->first.starts_with(prefix)) return;
  for (; it != tensors.end() && it->first.starts_with(prefix); ++it) {
    const std::string name = it->first.substr(prefix.size());
    if (name == "step") {
      state.write(name, c10::IValue(it->second.item<int64_t>()));
      continue;
    }
    const bool is_coded = find_state(rule, name) != nullptr && codec_of(it->second);
    if (is_coded) {
      const auto scales = tensors.find(prefix + scale_name(name));
      const at::Tensor fp32 =
          decoded(it->second, scales == tensors.end() ? at::Tensor() : scales->second);
      state.write(name, fp32, /*is_buffer=*/true);
    }
    state.write(is_coded ? name + std::string(kCoded) : name, it->second, /*is_buffer=*/true);
  }
  states.write(key, state);
}

at::Tensor size_tensor(size_t size) { return at::tensor({static_cast<int64_t>(size)}, at::kLong); }

}  // namespace

void write_archive(OutputArchive& archive, const Rules& rules,
                   const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const NamedTensors& tensors) {
  OutputArchive states(archive.compilation_unit()), all(archive.compilation_unit());
  all.write("param_groups/size", size_tensor(groups.size()));
  size_t parameter = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    OutputArchive group(archive.compilation_unit()), of_group(archive.compilation_unit());
    const std::vector<at::Tensor>& members = groups[g].params();
    group.write("params/size", size_tensor(members.size()));
    for (size_t i = 0; i < members.size(); ++i) {
      const auto key =
          std::to_string(reinterpret_cast<std::uintptr_t>(members[i].unsafeGetTensorImpl()));
      group.write("params/" + std::to_string(i), c10::IValue(key));
      write_parameter(states, key, std::to_string(parameter++) + ".", *rules[g], tensors);
    }
    write_options(of_group, *rules[g], groups[g].options());
    group.write("options", of_group);
    all.write("param_groups/" + std::to_string(g), group);
  }
  archive.write("pytorch_version", c10::IValue("1.5.0"));  // of LibTorch's format
  archive.write("state", states);
  archive.write("param_groups", all);
  archive.write("taken", tensors.at("taken"), /*is_buffer=*/true);
  std::vector<std::string> of_demi{kAcceptedNorms};
  for (size_t g = 0; g < groups.size(); ++g) of_demi.push_back(scheduled_rates_of(g));
  for (const std::string& name : of_demi)
    if (const auto found = tensors.find(name); found != tensors.end())
      archive.write(name, found->second, /*is_buffer=*/true);
  archive.write("rule", c10::IValue(name_of(rules)));
}

Archived read_archive(InputArchive& archive, const Rules& rules,
                      const std::vector<size_t>& group_sizes) {
  try {
    check_rules(archive, rules);
    Archived read = read_groups(archive, rules, group_sizes);
    read_taken(archive, read.tensors);
    std::vector<std::string> of_demi{kAcceptedNorms};
    for (size_t g = 0; g < group_sizes.size(); ++g) of_demi.push_back(scheduled_rates_of(g));
    for (const std::string& name : of_demi)
      if (c10::IValue found; archive.try_read(name, found))
        read.tensors[name] = as_tensor(name, found);
    return read;
  } catch (const c10::Error& error) {
    refuse_state("the archive is not that of an optimizer", error.what_without_backtrace(),
                 "what torch::save wrote of one");
  }
}

}  // namespace demi::optim

#include "demi/optim/rule.h"

#include <c10/util/Type.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cmath>
#include <numeric>
#include <type_traits>
#include <typeinfo>

#include "demi/core/error.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {
namespace {

/// Calls with the name of each option and a reference to it.
template <class Call>
void each_option(const Rule& rule, OptimizerOptions& own, const Call& call) {
  for (const auto& [name, place] : rule.list(own))
    std::visit([&call, name = name](auto* value) { call(name, *value); }, place);
}

/// Calls call(name, value) for each option, of any accepted type, for reading alone.
template <class Call>
void each_value(const Rule& rule, const OptimizerOptions& options, const Call& call) {
  const std::unique_ptr<OptimizerOptions> own = own_options(rule, options);
  each_option(rule, *own, [&](const char* name, const auto& value) { call(name, value); });
}

AdjustLr adjust_lr_of(int64_t number) {
  require(number >= 0 && number <= static_cast<int64_t>(AdjustLr::none),
          {.where = "optim.Muon",
           .what = "there is no such adjust_lr",
           .seen = std::to_string(number),
           .accepted = "0 original, 1 match_rms_adamw, 2 spectral_unclamped, 3 none"});
  return static_cast<AdjustLr>(number);
}

/// Moves the number from `numbers` to `value`, which stays if there is none.
void take_number(StateDict& numbers, const std::string& name, double& value) {
  if (const auto taken = numbers.extract(name)) value = taken.mapped();
}
void take_number(StateDict& numbers, const std::string& name, bool& value) {
  double number = value ? 1 : 0;
  take_number(numbers, name, number);
  require(number == 0 || number == 1, {.where = "optim.Optimizer",
                                       .what = "the option " + name + " is a flag",
                                       .seen = std::to_string(number),
                                       .accepted = "0 or 1"});
  value = number != 0;
}
void take_number(StateDict& numbers, const std::string& name, int64_t& value) {
  auto number = static_cast<double>(value);
  take_number(numbers, name, number);
  require(number == std::floor(number) && std::abs(number) <= 0x1p53,
          {.where = "optim.Optimizer",
           .what = "the option " + name + " is a whole number",
           .seen = std::to_string(number),
           .accepted = "a whole number"});
  value = static_cast<int64_t>(number);
}
void take_number(StateDict& numbers, const std::string& name, AdjustLr& value) {
  auto number = static_cast<int64_t>(value);
  take_number(numbers, name, number);
  value = adjust_lr_of(number);
}
template <class... Numbers>
void take_number(StateDict& numbers, const std::string& name, std::tuple<Numbers...>& value) {
  int k = 0;
  std::apply(
      [&](auto&... one) { (take_number(numbers, name + "." + std::to_string(k++), one), ...); },
      value);
}

/// The value as an archive holds it.
template <class Value>
c10::IValue stored(const Value& value) {
  if constexpr (std::is_enum_v<Value>)
    return static_cast<int64_t>(value);
  else
    return value;
}
template <class Value>
Value restored(const c10::IValue& stored) {
  if constexpr (std::is_enum_v<Value>)
    return adjust_lr_of(stored.toInt());
  else
    return stored.to<Value>();
}

void require_in_range(bool accepted, const std::string& optimizer, const char* option, double seen,
                      const char* range) {
  if (accepted) return;
  refuse({.where = "optim." + optimizer,
          .what = std::string(option) + " is out of range",
          .seen = std::to_string(seen),
          .accepted = range});
}

void check(const kernels::Group& group, const std::string& optimizer) {
  const auto in_range = [&](bool accepted, const char* option, double seen, const char* range) {
    require_in_range(accepted, optimizer, option, seen, range);
  };
  const auto not_negative = [&](const char* option, double value) {
    require_not_negative(optimizer, option, value);
  };
  const auto decay = [&](const char* option, double beta) {
    in_range(beta >= 0 && beta < 1, option, beta, "0 or more, under 1");
  };
  not_negative("lr", group.learning_rate);
  not_negative("momentum", group.momentum);
  in_range(std::isfinite(group.dampening), "dampening", group.dampening, "finite");
  in_range(!group.nesterov || (group.momentum > 0 && group.dampening == 0),
           "momentum with nesterov", group.momentum, "above 0, with a dampening of 0");
  decay("beta1", group.beta1);
  decay("beta2", group.beta2);
  not_negative("eps", group.epsilon);
  not_negative("weight_decay", group.weight_decay);
  in_range(group.trust_limit > 0, "trust_limit", group.trust_limit, "above 0");
}

}  // namespace

void require_not_negative(const std::string& optimizer, const char* option, double value) {
  require_in_range(value >= 0 && std::isfinite(value), optimizer, option, value,
                   "0 or more, finite");
}

std::unique_ptr<OptimizerOptions> own_options(const Rule& rule, const OptimizerOptions& given) {
  if (rule.is_own(given)) return given.clone();
  if (auto own = rule.from_libtorch(given)) return own;
  refuse({.where = "optim." + rule.name,
          .what = "the options of a parameter group are those of another optimizer",
          .seen = c10::demangle(typeid(given).name()),
          .accepted = rule.accepted,
          .advice = "demi::optim::MultiOptimizer has groups with different rules"});
}

std::unique_ptr<OptimizerOptions> merged_options(const Rule& rule, const OptimizerOptions& given,
                                                 const OptimizerOptions& defaults) {
  auto merged = own_options(rule, given);
  const auto fresh = rule.fresh(), inherited = defaults.clone();
  const OptionList unset = rule.list(*fresh), by_default = rule.list(*inherited);
  std::size_t i = 0;
  each_option(rule, *merged, [&]<class Value>(const char*, Value& value) {
    if (value == *std::get<Value*>(unset[i].second))
      value = *std::get<Value*>(by_default[i].second);
    ++i;
  });
  auto& storage = dynamic_cast<StateStorage&>(*merged);
  storage.in_fp32 |= dynamic_cast<const StateStorage&>(defaults).in_fp32;
  return merged;
}

void assign_options(const Rule& rule, torch::optim::OptimizerParamGroup& group,
                    const OptimizerOptions& options) {
  auto from = options.clone();
  if (!rule.is_own(group.options())) return group.set_options(std::move(from));
  const OptionList values = rule.list(*from);
  std::size_t i = 0;
  each_option(rule, group.options(), [&]<class Value>(const char*, Value& value) {
    value = *std::get<Value*>(values[i++].second);
  });
}

MatrixOptions matrices_of(const Rule& rule, const OptimizerOptions& options) {
  return rule.matrices ? rule.matrices(options) : MatrixOptions();
}

void check_matrices(const Rule& rule, const OptimizerOptions& options,
                    const at::Tensor& parameter) {
  if (!rule.matrices) return;
  if (parameter.dim() < 2)
    refuse({.where = "optim." + rule.name,
            .what = "a parameter is no matrix",
            .seen = c10::str("shape ", parameter.sizes()),
            .accepted = "two dimensions or more",
            .advice = "give it to a group of another rule, as demi::optim::muon_groups does"});
  const std::vector<int64_t> rows = matrices_of(rule, options).split_rows;
  if (rows.empty() || std::accumulate(rows.begin(), rows.end(), int64_t{0}) == parameter.size(0))
    return;
  refuse({.where = "optim." + rule.name,
          .what = "split_rows does not add up to the rows of a parameter",
          .seen = c10::str(at::IntArrayRef(rows), " of shape ", parameter.sizes()),
          .accepted = c10::str("numbers of rows with the sum ", parameter.size(0)),
          .advice = "set split_rows of the group to the matrices that the parameter consists of "
                    "(before replace_parameter, if its rows change); parameters that consist of "
                    "other matrices have a group of their own"});
}

kernels::Group numbers_of(const Rule& rule, const OptimizerOptions& options) {
  if (!rule.is_own(options)) return numbers_of(rule, *own_options(rule, options));
  kernels::Group group = rule.numbers(options);
  group.rule = rule.id;
  group.fp32_states = dynamic_cast<const StateStorage&>(options).in_fp32;
  check(group, rule.name);
  return group;
}

StateDict to_numbers(const Rule& rule, const OptimizerOptions& options) {
  StateDict numbers;
  each_value(rule, options, [&]<class Value>(const std::string& name, const Value& value) {
    if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
      numbers[name] = static_cast<double>(value);
    } else {
      int k = 0;
      std::apply(
          [&](const auto&... one) { ((numbers[name + "." + std::to_string(k++)] = one), ...); },
          value);
    }
  });
  return numbers;
}

std::unique_ptr<OptimizerOptions> with_numbers(const Rule& rule, const OptimizerOptions& options,
                                               StateDict numbers) {
  auto own = own_options(rule, options);
  std::vector<std::string> known;
  each_option(rule, *own, [&](const std::string& name, auto& value) {
    known.push_back(name);
    take_number(numbers, name, value);
  });
  if (!numbers.empty())
    refuse({.where = "optim.Optimizer",
            .what = "the state has an option that this optimizer does not know",
            .seen = numbers.begin()->first,
            .accepted = c10::Join(", ", known),
            .advice = "load what was saved from the same model and optimizer"});
  return own;
}

void write_options(torch::serialize::OutputArchive& archive, const Rule& rule,
                   const OptimizerOptions& options) {
  each_value(rule, options,
             [&](const char* name, const auto& value) { archive.write(name, stored(value)); });
}

void read_options(torch::serialize::InputArchive& archive, const Rule& rule,
                  OptimizerOptions& options) {
  each_option(rule, options, [&]<class Value>(const char* name, Value& value) {
    c10::IValue read;
    if (archive.try_read(name, read)) value = restored<Value>(read);
  });
}

}  // namespace demi::optim

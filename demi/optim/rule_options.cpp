#include "demi/optim/rule_options.h"

#include <c10/util/Type.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <string>
#include <typeinfo>

#include "demi/core/error.h"

namespace demi::optim {
namespace {

template <class Value>
void read_as(torch::serialize::InputArchive& archive, const char* name, Value& value) {
  c10::IValue read;
  if (archive.try_read(name, read)) value = read.to<Value>();
}

}  // namespace

kernels::Group checked(kernels::Group group, const char* optimizer) {
  const auto require = [&](bool accepted, const char* option, double seen, const char* range) {
    if (accepted) return;
    throw UsageError({.where = optimizer,
                      .what = std::string(option) + " is out of range",
                      .seen = std::to_string(seen),
                      .accepted = range});
  };
  const auto require_positive = [&](const char* option, double value) {
    require(value >= 0 && std::isfinite(value), option, value, "0 or more, finite");
  };
  const auto require_decay = [&](const char* option, double beta) {
    require(beta >= 0 && beta < 1, option, beta, "0 or more, under 1");
  };
  require_positive("lr", group.learning_rate);
  require_positive("momentum", group.momentum);
  require(std::isfinite(group.dampening), "dampening", group.dampening, "finite");
  require(!group.nesterov || (group.momentum > 0 && group.dampening == 0), "momentum with nesterov",
          group.momentum, "above 0, with a dampening of 0");
  require_decay("beta1", group.beta1);
  require_decay("beta2", group.beta2);
  require_positive("eps", group.epsilon);
  require_positive("weight_decay", group.weight_decay);
  require(group.trust_limit > 0, "trust_limit", group.trust_limit, "above 0");
  return group;
}

void refuse_options(const torch::optim::OptimizerOptions& seen, const char* optimizer,
                    const char* accepted) {
  throw UsageError({.where = optimizer,
                    .what = "the options of a parameter group are those of another optimizer",
                    .seen = c10::demangle(typeid(seen).name()),
                    .accepted = accepted});
}

void write_option(torch::serialize::OutputArchive& archive, const char* name,
                  const c10::IValue& value) {
  archive.write(name, value);
}

void read_option(torch::serialize::InputArchive& archive, const char* name, double& value) {
  read_as(archive, name, value);
}
void read_option(torch::serialize::InputArchive& archive, const char* name, bool& value) {
  read_as(archive, name, value);
}
void read_option(torch::serialize::InputArchive& archive, const char* name,
                 std::tuple<double, double>& value) {
  read_as(archive, name, value);
}

void write_number(StateDict& numbers, const std::string& name, double value) {
  numbers[name] = value;
}
void write_number(StateDict& numbers, const std::string& name,
                  const std::tuple<double, double>& value) {
  numbers[name + ".0"] = std::get<0>(value);
  numbers[name + ".1"] = std::get<1>(value);
}

void take_number(StateDict& numbers, const std::string& name, double& value) {
  if (const auto taken = numbers.extract(name)) value = taken.mapped();
}
void take_number(StateDict& numbers, const std::string& name, bool& value) {
  double number = value ? 1 : 0;
  take_number(numbers, name, number);
  if (number != 0 && number != 1)
    throw UsageError({.where = "optim.Optimizer",
                      .what = "the option " + name + " is a flag",
                      .seen = std::to_string(number),
                      .accepted = "0 or 1"});
  value = number != 0;
}
void take_number(StateDict& numbers, const std::string& name, std::tuple<double, double>& value) {
  take_number(numbers, name + ".0", std::get<0>(value));
  take_number(numbers, name + ".1", std::get<1>(value));
}

}  // namespace demi::optim

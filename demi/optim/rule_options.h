#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <tuple>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/kernels/step_table.h"

namespace demi::optim {

/// Returns the group if all of its numbers are in range; else throws UsageError that names the
/// optimizer and the option. A rule leaves options that it does not have at their defaults.
DEMI_API kernels::Group checked(kernels::Group group, const char* optimizer);

DEMI_API void write_option(torch::serialize::OutputArchive& archive, const char* name,
                           const c10::IValue& value);
/// These leave `value` as it is if the archive has no option of that name.
DEMI_API void read_option(torch::serialize::InputArchive& archive, const char* name, double& value);
DEMI_API void read_option(torch::serialize::InputArchive& archive, const char* name, bool& value);
DEMI_API void read_option(torch::serialize::InputArchive& archive, const char* name,
                          std::tuple<double, double>& value);

/// An option as plain numbers: a pair as "betas.0" and "betas.1", a flag as 0 or 1.
DEMI_API void write_number(StateDict& numbers, const std::string& name, double value);
DEMI_API void write_number(StateDict& numbers, const std::string& name,
                           const std::tuple<double, double>& value);
/// Takes the option out of `numbers`. Leaves `value` as it is if there is no such number. Throws
/// UsageError for a flag that is neither 0 nor 1.
DEMI_API void take_number(StateDict& numbers, const std::string& name, double& value);
DEMI_API void take_number(StateDict& numbers, const std::string& name, bool& value);
DEMI_API void take_number(StateDict& numbers, const std::string& name,
                          std::tuple<double, double>& value);

/// What the options of all rules share: torch::save, torch::load, the learning rate. `Self` visits
/// its options: each(self, [](const char* name, auto& value) { ... }). So an option is named in
/// TORCH_ARG (LibTorch's accessors), in each() and in numbers(): a macro that makes all three from
/// one list would hide what users read first.
template <class Self>
struct DEMI_API RuleOptions : public torch::optim::OptimizerCloneableOptions<Self> {
  void serialize(torch::serialize::OutputArchive& archive) const override {
    Self::each(self(), [&](const char* name, const auto& value) {
      write_option(archive, name, c10::IValue(value));
    });
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    Self::each(self(), [&](const char* name, auto& value) { read_option(archive, name, value); });
  }
  double get_lr() const override { return self().lr(); }
  void set_lr(double rate) override { self().lr(rate); }

 private:
  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace demi::optim

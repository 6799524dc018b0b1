#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/kernels/step_table.h"

namespace demi::optim {

/// Returns the group if all of its numbers are in range; else throws UsageError that names the
/// optimizer and the option. A rule leaves options that it does not have at their defaults.
DEMI_API kernels::Group checked(kernels::Group group, const char* optimizer);

/// Throws UsageError: options of a parameter group that are of none of the `accepted` types.
[[noreturn]] DEMI_API void refuse_options(const torch::optim::OptimizerOptions& seen,
                                          const char* optimizer, const char* accepted);

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

/// The options of the rules that LibTorch has, too, derive from LibTorch's, so that casts to
/// torch::optim::AdamOptions& stay right in a program that moves to demi. This declares LibTorch's
/// option `name` for the derived type: setters that return it.
#define DEMI_TORCH_OPTION(T, name)                          \
 public:                                                    \
  using Torch::name;                                        \
  auto name(const T& value)->decltype(*this) { /* NOLINT */ \
    Torch::name(value);                                     \
    return *this;                                           \
  }                                                         \
  auto name(T&& value)->decltype(*this) { /* NOLINT */      \
    Torch::name(std::move(value));                          \
    return *this;                                           \
  }                                                         \
                                                            \
 private:                                                   \
  static_assert(true) /* takes the semicolon */

/// What the options of all rules share: torch::save, torch::load, the learning rate, copies.
/// `Base`: LibTorch's options of the same name, or OptimizerCloneableOptions. `Self` visits its
/// options, of several objects at once: each(visit, a, b) calls visit("lr", a.lr(), b.lr()), ... So
/// an option is named in TORCH_ARG (LibTorch's accessors) or DEMI_TORCH_OPTION, in each() and in
/// numbers(): a macro that makes all from one list would hide what users read first.
template <class Self, class Base = torch::optim::OptimizerCloneableOptions<Self>>
struct DEMI_API RuleOptions : public Base {
  RuleOptions() = default;
  explicit RuleOptions(double lr) requires std::is_constructible_v<Base, double> : Base(lr) {}
  explicit RuleOptions(const Base& options) : Base(options) {}

  void serialize(torch::serialize::OutputArchive& archive) const override {
    Self::each([&](const char* name,
                   const auto& value) { write_option(archive, name, c10::IValue(value)); },
               self());
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    Self::each([&](const char* name, auto& value) { read_option(archive, name, value); }, self());
  }
  double get_lr() const override { return self().lr(); }
  void set_lr(double rate) override { self().lr(rate); }

 private:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Self>(self());
  }
  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace demi::optim

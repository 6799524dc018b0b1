#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "demi/core/export.h"

namespace demi::optim {

struct Rule;

/// Writes a group's options for torch::save.
DEMI_API void write_options(torch::serialize::OutputArchive& archive, const Rule& rule,
                            const torch::optim::OptimizerOptions& options);
/// Reads them for torch::load. An option that the archive does not have stays as it is.
DEMI_API void read_options(torch::serialize::InputArchive& archive, const Rule& rule,
                           torch::optim::OptimizerOptions& options);

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

/// The interface by which a schedule of the momentum sets it in the options of any rule.
struct DEMI_API ScheduledMomentum {
  virtual ~ScheduledMomentum() = default;
  /// `momentum`, or the first of `betas`. Returns false if the rule has neither.
  virtual bool set_momentum(double value) = 0;
};

/// The interface by which a group's options name their rule.
struct DEMI_API OptionsOfRule {
  virtual ~OptionsOfRule() = default;
  /// The rule of a group with these options.
  virtual const Rule& its_rule() const = 0;
};

/// A group's setting for the states of its parameters.
struct DEMI_API StateStorage {
  virtual ~StateStorage() = default;
  bool in_fp32 = false;  // moments of this group stay in FP32
};

/// The functions that the options of all optimizers share: torch::save, torch::load, the learning
/// rate, copies. `Base`: LibTorch's options of the same name, or OptimizerCloneableOptions.
/// Self::rule() names the options, each of which is a TORCH_ARG (LibTorch's accessors) or a
/// DEMI_TORCH_OPTION: a macro that makes both from one list would hide what users read first.
template <class Self, class Base = torch::optim::OptimizerCloneableOptions<Self>>
struct DEMI_API RuleOptions : public Base,
                              public ScheduledMomentum,
                              public StateStorage,
                              public OptionsOfRule {
  RuleOptions() = default;
  explicit RuleOptions(double lr) requires std::is_constructible_v<Base, double> : Base(lr) {}
  explicit RuleOptions(const Base& options) : Base(options) {}

  void serialize(torch::serialize::OutputArchive& archive) const override {
    write_options(archive, Self::rule(), *this);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    read_options(archive, Self::rule(), *this);
  }
  /// Keeps the states of this group in FP32, whatever StepOptions::moments says. Not saved: like
  /// StepOptions, it is the program's setting.
  Self& fp32_states(bool on) {
    in_fp32 = on;
    return self();
  }
  bool fp32_states() const { return in_fp32; }
  const Rule& its_rule() const override { return Self::rule(); }
  double get_lr() const override { return self().lr(); }
  void set_lr(double rate) override { self().lr(rate); }
  bool set_momentum(double value) override {
    if constexpr (requires(Self & o) { o.momentum(value); }) {
      self().momentum(value);
    } else if constexpr (requires(Self & o) { o.betas({value, 0}); }) {
      self().betas({value, std::get<1>(self().betas())});
    } else {
      return false;
    }
    return true;
  }

 private:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Self>(self());
  }
  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace demi::optim

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/loop/observer.h"
#include "demi/monitor/repeated_batch.h"
#include "demi/quantization/layers.h"

namespace demi::monitor {

/// Repeats a batch of an FP32 run in FP32, and in a region of bf16 in which a policy is in force
/// for the repetition alone. The run continues as without.
class RecipeTrial {
 public:
  /// The gradients of the module's parameters, and the loss.
  struct Pass {
    std::vector<at::Tensor> gradients;  // undefined for parameters without
    at::Tensor loss;
    bool is_finite() const;
  };

  /// `seed`: of roundings by chance.
  explicit RecipeTrial(std::uint64_t seed) : seed_(seed) {}

  /// Keeps what a repeated batch changes: called before its forward.
  void begin(const loop::StepView& view) { before_ = Surroundings::of(view.module); }
  void end() { before_.reset(); }
  bool has_begun() const { return before_.has_value(); }

  /// In FP32.
  Pass in_fp32(const loop::StepView& view);
  /// In the region. The observer, if there is one, hears of the products.
  Pass in_region(const loop::StepView& view, const OpPolicy& policy,
                 quantization::ProductObserver* observer);
  /// Whether the last pass drew random numbers.
  bool draws_numbers() const { return draws_; }

 private:
  Pass repeat(const loop::StepView& view, const loop::RepeatOptions& how);

  const std::uint64_t seed_;
  std::optional<Surroundings> before_;
  bool draws_ = false;
};

}  // namespace demi::monitor

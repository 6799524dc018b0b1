#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "demi/weights/step_targets.h"
#include "demi/weights/weights.h"

namespace demi::weights::testing {

/// A test in Mode::keep, at the end of which no copy must be left.
class Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    before_ = mode();
    set_mode(Mode::keep);
    reset_stats();
  }
  void TearDown() override {
    for (const auto& p : owned_) disown(p);
    set_capacity();
    set_mode(before_);
    EXPECT_EQ(stats().copies, 0);
    EXPECT_EQ(stats().bytes, 0);
  }
  at::Tensor parameter(at::IntArrayRef sizes = {4, 4}, bool requires_grad = true) {
    return torch::randn(sizes).set_requires_grad(requires_grad);
  }
  at::Tensor owned_parameter(at::IntArrayRef sizes = {4, 4}, bool requires_grad = true) {
    auto p = parameter(sizes, requires_grad);
    own(p);
    owned_.push_back(p);
    return p;
  }
  std::vector<at::Tensor> owned_;
  Mode before_;
};

/// An op must get the parameter's present value, rounded.
inline void expect_right(const at::Tensor& p, const char* what) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const auto low = low_precision(p, dtype);
    EXPECT_EQ(low.scalar_type(), dtype) << what;
    EXPECT_TRUE(low.detach().equal(p.detach().to(dtype))) << what << " left a stale copy";
    EXPECT_TRUE(low_precision(p.t(), dtype).detach().equal(p.detach().t().to(dtype)))
        << what << " (view)";
  }
}

/// Writes a target as a kernel of a step does.
inline void write_through(const StepTarget& target, std::int64_t elements, float value) {
  std::fill_n(static_cast<float*>(target.parameter), elements, value);
  for (int c = 0; c < target.copy_count; ++c) {
    if (target.copies[c].dtype == torch::kHalf)
      std::fill_n(static_cast<at::Half*>(target.copies[c].data), elements, at::Half(value));
    else
      std::fill_n(static_cast<at::BFloat16*>(target.copies[c].data), elements, at::BFloat16(value));
  }
}

}  // namespace demi::weights::testing

// The documented behaviour of torch.amp.custom_fwd and custom_bwd, and rules for operators of a
// user.
#include "demi/autocast/custom.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "demi/core/error.h"

namespace demi {
namespace {

using testing::HasSubstr;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct State {
  bool enabled;
  torch::Dtype dtype;
  bool operator==(const State&) const = default;
};

State state_now() {
  return {at::autocast::is_autocast_enabled(torch::kCPU),
          at::autocast::get_autocast_dtype(torch::kCPU)};
}

/// The settings that decide how a recomputed forward runs.
struct Rules {
  torch::Dtype product, batched_product;
  bool cache;
  bool operator==(const Rules&) const = default;
};

Rules rules_now() {
  const auto x = torch::ones({2, 2}), batch = torch::ones({1, 2, 2});
  return {torch::mm(x, x).scalar_type(), torch::bmm(batch, batch).scalar_type(),
          at::autocast::is_autocast_cache_enabled()};
}

struct Follows : torch::autograd::Function<Follows> {
  static inline State in_backward;
  static inline Rules rules_in_forward, rules_in_backward;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const CustomForward autocast(ctx, torch::kCPU);
    rules_in_forward = rules_now();
    return torch::mm(x, x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const CustomBackward autocast(ctx);
    in_backward = state_now();
    rules_in_backward = rules_now();
    return {gradients[0].to(torch::kFloat)};
  }
};

// Records the dtypes that cast() gave, and that of a product inside.
struct WantsFp32 : torch::autograd::Function<WantsFp32> {
  static inline std::vector<torch::Dtype> given;
  static inline bool on_in_backward;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& index,
                            const at::Tensor& exact) {
    const CustomForward autocast(ctx, torch::kCPU, torch::kFloat);
    const auto a = autocast.cast(x);
    const auto product = torch::mm(a, a);
    given = {a.scalar_type(), autocast.cast(index).scalar_type(),
             autocast.cast(exact).scalar_type(), product.scalar_type()};
    return product;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const CustomBackward autocast(ctx);
    on_in_backward = at::autocast::is_autocast_enabled(torch::kCPU);
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

struct ForgotForward : torch::autograd::Function<ForgotForward> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const CustomBackward autocast(ctx);
    return gradients;
  }
};

at::Tensor leaf() { return torch::ones({2, 2}).set_requires_grad(true); }

TEST(Custom, BackwardHasTheAutocastStateOfForward) {
  const auto outside = state_now();
  at::Tensor in_fp16 = [] {
    const Autocast region(torch::kCPU, torch::kHalf);
    return Follows::apply(leaf());
  }();
  in_fp16.sum().backward();
  EXPECT_EQ(Follows::in_backward, (State{true, torch::kHalf})) << "called outside of any region";
  EXPECT_EQ(state_now(), outside);
  in_fp16 = [] {
    const Autocast region(torch::kCPU, torch::kHalf);
    return Follows::apply(leaf());
  }();
  const at::Tensor in_none = Follows::apply(leaf());
  const Autocast region(torch::kCPU, torch::kBFloat16);
  in_fp16.sum().backward();
  EXPECT_EQ(Follows::in_backward, (State{true, torch::kHalf})) << "called in a region of bf16";
  in_none.sum().backward();
  EXPECT_FALSE(Follows::in_backward.enabled) << "forward ran without autocast";
  EXPECT_EQ(state_now(), (State{true, torch::kBFloat16}));
}

TEST(Custom, BackwardHasThePolicyAndTheCacheSettingOfForward) {
  OpPolicy mm, bmm;
  mm.set("mm", OpCategory::fp32);
  bmm.set("bmm", OpCategory::fp32);
  const auto output = [](const AutocastOptions& options) {
    const Autocast region(torch::kCPU, options);
    return Follows::apply(leaf());
  };
  const Rules outside = rules_now();

  output({.dtype = torch::kHalf, .cache_enabled = false, .policy = mm}).sum().backward();
  EXPECT_EQ(Follows::rules_in_forward, (Rules{torch::kFloat, torch::kHalf, false}));
  EXPECT_EQ(Follows::rules_in_backward, Follows::rules_in_forward) << "outside of any region";

  const auto without_policy = output({.dtype = torch::kHalf});
  {
    const Autocast region(torch::kCPU, AutocastOptions{.cache_enabled = false, .policy = bmm});
    without_policy.sum().backward();
    EXPECT_EQ(Follows::rules_in_backward, Follows::rules_in_forward) << "in another region";
  }

  set_global_op_policy(bmm);
  const auto under_global = output({.dtype = torch::kHalf});
  EXPECT_EQ(Follows::rules_in_forward, (Rules{torch::kHalf, torch::kFloat, true}));
  set_global_op_policy(OpPolicy());
  under_global.sum().backward();
  EXPECT_EQ(Follows::rules_in_backward, Follows::rules_in_forward) << "the global one of then";

  EXPECT_EQ(rules_now(), outside);
}

TEST(Custom, CastInputsTurnsAutocastOffAndCastsFloatingPointButFp64) {
  const auto index = torch::ones({2}, torch::kLong), exact = torch::ones({2}, torch::kDouble);
  const auto y = [&] {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    const auto x = leaf();
    return WantsFp32::apply(torch::mm(x, x), index, exact);
  }();
  EXPECT_EQ(WantsFp32::given,
            (std::vector{torch::kFloat, torch::kLong, torch::kDouble, torch::kFloat}));
  const Autocast region(torch::kCPU, torch::kBFloat16);
  y.sum().backward();
  EXPECT_FALSE(WantsFp32::on_in_backward);
}

TEST(Custom, CastInputsChangesNothingOutsideOfARegion) {
  const auto index = torch::ones({2}, torch::kLong), exact = torch::ones({2}, torch::kDouble);
  WantsFp32::apply(torch::ones({2, 2}, torch::kBFloat16), index, exact);
  EXPECT_EQ(WantsFp32::given,
            (std::vector{torch::kBFloat16, torch::kLong, torch::kDouble, torch::kBFloat16}));
}

TEST(Custom, BackwardWithoutItsForwardIsRefused) {
  try {
    ForgotForward::apply(leaf()).sum().backward();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CustomForward"));
  }
}

at::Tensor same(const at::Tensor& x) { return x.clone(); }

torch::Dtype dtype_after(const char* op, const OpPolicy* policy = nullptr) {
  const Autocast region(torch::kCPU, policy ? AutocastOptions{.policy = *policy}
                                            : AutocastOptions{.dtype = torch::kBFloat16});
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(op, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(torch::ones({2}))
      .scalar_type();
}

TEST(RegisteredOperator, FollowsItsRuleWhereverNoPolicyNamesIt) {
  OpPolicy other, names_it;
  other.set("mm", OpCategory::fp32);
  names_it.set("demi_test::first", OpCategory::fp32);
  EXPECT_EQ(dtype_after("demi_test::first"), torch::kFloat) << "not yet";
  EXPECT_EQ(dtype_after("demi_test::first", &other), torch::kFloat);
  register_autocast("demi_test::first", OpCategory::lower_precision, torch::kCPU);
  EXPECT_EQ(dtype_after("demi_test::first"), torch::kBFloat16);
  EXPECT_EQ(dtype_after("demi_test::first", &other), torch::kBFloat16)
      << "a policy that was in use before";
  EXPECT_EQ(dtype_after("demi_test::first", &names_it), torch::kFloat);
  EXPECT_THROW(register_autocast("demi_test::none", OpCategory::fp32, torch::kCPU), UsageError);
}

TEST(RegisteredOperator, TheGlobalPolicyThatNamesItKeepsItsSay) {
  OpPolicy policy;
  policy.set("demi_test::second", OpCategory::fp32);
  set_global_op_policy(policy);
  EXPECT_EQ(dtype_after("demi_test::second"), torch::kFloat);
  register_autocast("demi_test::second", OpCategory::lower_precision, torch::kCPU);
  EXPECT_EQ(dtype_after("demi_test::second"), torch::kFloat);
  set_global_op_policy(OpPolicy());
  EXPECT_EQ(dtype_after("demi_test::second"), torch::kBFloat16);
}

}  // namespace

TORCH_LIBRARY(demi_test, library) {
  library.def("first(Tensor x) -> Tensor");
  library.def("second(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(demi_test, CompositeImplicitAutograd, library) {
  library.impl("first", same);
  library.impl("second", same);
}

}  // namespace demi

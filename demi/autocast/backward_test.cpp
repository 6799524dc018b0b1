#include "demi/autocast/backward.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/autocast/custom.h"

namespace demi {
namespace {

using testing::HasSubstr;
using testing::Not;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y = x w as somebody writes it who forgot about autocast: backward meets an FP32 w.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x, at::Tensor w) {
    ctx->save_for_backward({x, w});
    return torch::mm(x, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    return {torch::mm(gradients[0], saved[1].t()), torch::mm(saved[0].t(), gradients[0])};
  }
};

struct Dot : torch::autograd::Function<Dot> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x, at::Tensor w) {
    ctx->save_for_backward({x, w});
    return torch::mm(x, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    gradients[0].relu();  // returns before the one that throws
    torch::dot(gradients[0].flatten(), saved[1].flatten());
    return {at::Tensor(), at::Tensor()};
  }
};

struct Recovers : torch::autograd::Function<Recovers> {
  static at::Tensor forward(AutogradContext*, at::Tensor x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    try {
      torch::dot(gradients[0].flatten().to(torch::kBFloat16), gradients[0].flatten());
    } catch (const c10::Error&) {
    }
    return {gradients[0] * 2};
  }
};

struct CuredProduct : torch::autograd::Function<CuredProduct> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x, at::Tensor w) {
    const CustomForward autocast(ctx, torch::kCPU);
    ctx->save_for_backward({x, w});
    return torch::mm(x, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const CustomBackward autocast(ctx);
    const auto saved = ctx->get_saved_variables();
    return {torch::mm(gradients[0], saved[1].t()), torch::mm(saved[0].t(), gradients[0])};
  }
};

struct WrongShape : torch::autograd::Function<WrongShape> {
  static at::Tensor forward(AutogradContext*, at::Tensor x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {torch::mm(gradients[0], torch::ones({7, 7}))};
  }
};

class Backward : public testing::Test {
 protected:
  at::Tensor x_ = torch::ones({2, 2}).set_requires_grad(true);
  at::Tensor w_ = torch::ones({2, 2}).set_requires_grad(true);

  template <class Function>
  at::Tensor loss_of() {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    return Function::apply(x_, w_).to(torch::kFloat).sum();
  }

  static std::string message(const at::Tensor& loss) {
    try {
      demi::backward(loss);
    } catch (const c10::Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

TEST_F(Backward, ADtypeErrorNamesFunctionOpDtypesForwardAndCure) {
  const auto said = message(loss_of<Product>());
  EXPECT_THAT(said, HasSubstr("Product"));
  EXPECT_THAT(said, Not(HasSubstr("CppNode")));
  EXPECT_THAT(said, HasSubstr("mm(bf16, fp32)"));
  EXPECT_THAT(said, HasSubstr("gradient bf16"));
  EXPECT_THAT(said, HasSubstr("forward gave bf16, backward runs outside of a region"));
  EXPECT_THAT(said, HasSubstr("demi::CustomBackward"));
  EXPECT_THAT(said, HasSubstr("mm then runs as lower_precision"));
  EXPECT_FALSE(at::hasCallbacks()) << "the observer is gone";
}

TEST_F(Backward, AnOpWithoutARuleComesWithThePolicyLine) {
  const auto said = message(loss_of<Dot>());
  EXPECT_THAT(said, HasSubstr("dot(bf16, fp32)"));
  EXPECT_THAT(said, HasSubstr("policy.set(\"dot\", demi::OpCategory::promote)"));
}

TEST_F(Backward, TheCureCures) {
  demi::backward(loss_of<CuredProduct>());
  EXPECT_TRUE(w_.grad().equal(torch::full({2, 2}, 2.)));
}

TEST_F(Backward, OtherErrorsStayAsTheyAre) {
  const auto said = message(WrongShape::apply(x_).sum());
  EXPECT_THAT(said, Not(HasSubstr("nothing was thrown")));
  EXPECT_THAT(said, Not(HasSubstr("[autocast.")));
}

TEST_F(Backward, InsideOfARegionTheKernelsOwnAdviceIsEnough) {
  const auto y = [&] {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    return Dot::apply(x_, w_).to(torch::kFloat).sum();
  }();
  const Autocast region(torch::kCPU, torch::kBFloat16);
  const auto said = message(y);
  EXPECT_THAT(said, HasSubstr("[autocast.dot]"));
  EXPECT_THAT(said, Not(HasSubstr("[autocast.backward]")));
}

TEST_F(Backward, AMistakeInAHookIsAnsweredWithTheCureAlone) {
  const auto y = [&] {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    return torch::mm(x_, w_);
  }();
  y.register_hook([](const at::Tensor& g) { return torch::mm(g, torch::ones({2, 2})); });
  const auto said = message(y.to(torch::kFloat).sum());
  EXPECT_THAT(said, HasSubstr("does not observe"));
}

TEST_F(Backward, WhatAFunctionCaughtItselfIsNotBlamed) {
  const auto y = Recovers::apply(x_ * 1);
  demi::backward(y.sum(), {}, /*retain_graph=*/true);
  EXPECT_TRUE(x_.grad().equal(torch::full({2, 2}, 2.)));
  x_.register_hook([](const at::Tensor& g) {
    return torch::mm(g, torch::ones({2, 2}, torch::kDouble));
  });
  const auto said = message(y.sum());
  EXPECT_THAT(said, HasSubstr("does not observe"));
  EXPECT_THAT(said, Not(HasSubstr("dot")));
}

// An op with an overload, called by another one, on the second way through a retained graph.
struct SecondTime : torch::autograd::Function<SecondTime> {
  static inline int calls;
  static at::Tensor forward(AutogradContext*, at::Tensor x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    if (++calls == 2)
      torch::matmul(torch::lerp(gradients[0], gradients[0].to(torch::kBFloat16), 0.5),
                    gradients[0]);
    return {gradients[0] * 2};
  }
};

TEST_F(Backward, TheInnermostOpIsNamedAlsoTheSecondTime) {
  SecondTime::calls = 0;
  const auto loss = SecondTime::apply(x_).sum();
  demi::backward(loss, {}, /*retain_graph=*/true);
  EXPECT_THAT(message(loss), HasSubstr("lerp.Scalar(fp32, bf16)"));
}

struct InnerMistake : torch::autograd::Function<InnerMistake> {
  static at::Tensor forward(AutogradContext*, at::Tensor x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {torch::matmul(gradients[0], gradients[0].to(torch::kBFloat16))};
  }
};

TEST_F(Backward, AnOpInsideOfAnOpIsTheOneThatIsNamed) {
  EXPECT_THAT(message(InnerMistake::apply(x_).sum()), HasSubstr("seen: mm(fp32, bf16)"));
}

TEST_F(Backward, NothingIsLeftOnLibTorchsNodesNorBetweenFunctions) {
  const auto h = x_ * 1;
  bool observed = true;
  h.register_hook([&](const at::Tensor&) { observed = at::hasCallbacks(); });
  const auto y = Recovers::apply(h);
  const auto loss = y.sum();
  demi::backward(loss, {}, /*retain_graph=*/true);
  EXPECT_FALSE(observed) << "the function's observer ends with it";
  EXPECT_TRUE(loss.grad_fn()->pre_hooks().empty());
  demi::backward(loss);
  EXPECT_EQ(y.grad_fn()->pre_hooks().size(), 1u);
}

TEST_F(Backward, AGraphOfManyPathsIsWalkedOnce) {
  auto y = x_ * 1;
  for (int i = 0; i < 60; ++i) y = y + y;
  demi::backward((y * 0).sum());
  EXPECT_TRUE(x_.grad().defined());
}

TEST_F(Backward, ARetainedGraphIsObservedEachTimeAndOnce) {
  const auto loss = loss_of<CuredProduct>();
  demi::backward(loss, {}, /*retain_graph=*/true);
  demi::backward(loss);
  EXPECT_TRUE(w_.grad().equal(torch::full({2, 2}, 4.)));
  EXPECT_FALSE(at::hasCallbacks());
}

}  // namespace
}  // namespace demi

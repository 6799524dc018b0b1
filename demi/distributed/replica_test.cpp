#include "demi/distributed/replica.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"

namespace demi::distributed {
namespace {

// Parameters of a device other than the module's, which a CPU alone has not.
TEST(StandIn, ACopyPassesGradientsOnAndNoticesWrites) {
  const auto parameter = torch::tensor({1., 2.}).requires_grad_();
  const auto replica = torch::zeros({2}).requires_grad_();
  for (const double factor : {3., 5.}) {
    stand_for(replica, parameter.clone(), parameter);
    (replica * factor).sum().backward();
    EXPECT_FALSE(replica.is_leaf());
  }
  EXPECT_TRUE(parameter.grad().equal(torch::tensor({8., 8.})));
  stand_for(replica, parameter.clone(), parameter);
  const auto loss = replica.square().sum();
  {
    const at::NoGradGuard no_grad;
    parameter.mul_(2);
  }
  EXPECT_THROW(loss.backward(), c10::Error) << "what it saved was written to";
  stand_for(replica, parameter.clone(), parameter);
  EXPECT_TRUE(replica.equal(torch::tensor({2., 4.})));
}

TEST(StandIn, AViewSharesMemoryAndGradient) {
  const auto parameter = torch::tensor({1., 2.}).requires_grad_();
  const auto replica = torch::zeros({5}).requires_grad_();
  share(replica, parameter);
  EXPECT_EQ(replica.data_ptr(), parameter.data_ptr());
  EXPECT_TRUE(replica._base().is_same(parameter));
  (replica * 3).sum().backward();
  EXPECT_TRUE(parameter.grad().equal(torch::tensor({3., 3.})));
  {
    const at::NoGradGuard no_grad;
    parameter.fill_(7);
    share(replica, parameter);
    EXPECT_TRUE(replica.equal(torch::tensor({7., 7.})));
  }
}

TEST(StandIn, HasThePolicyOfItsParameterOfNow) {
  torch::nn::Linear layer(8, 8);
  demi::apply(Policy("float32"), *layer);
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer->clone());
  const at::Tensor x = at::randn({2, 8});
  const auto dtype = [&] {
    stand_for(copy->weight, layer->weight.clone(), layer->weight);
    const Autocast region(at::kCPU, at::kBFloat16);
    return at::linear(x, copy->weight).scalar_type();
  };
  EXPECT_EQ(dtype(), at::kFloat);
  unapply(*layer);
  EXPECT_EQ(dtype(), at::kBFloat16);
  demi::apply(Policy("float32"), *layer);
  EXPECT_EQ(dtype(), at::kFloat);
}

}  // namespace
}  // namespace demi::distributed

// Functions of a program's own, which list what they save (torch::autograd::Function).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "demi/recompute/recompute.h"

namespace demi {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

enum class Saves { output, output_first, input };

// tanh, whose result is what backward needs.
struct Tanh : torch::autograd::Function<Tanh> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Saves saves,
                            std::vector<Weak>* results) {
    const at::Tensor y = x.tanh(), more = y.sign();
    results->push_back(y.storage().getWeakStorageImpl());
    if (saves == Saves::output)
      context->save_for_backward({more, y});
    else if (saves == Saves::output_first)
      context->save_for_backward({y, more});
    else
      context->save_for_backward({x, more});
    context->saved_data["output"] = saves == Saves::input ? -1 : saves == Saves::output ? 1 : 0;
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto output = context->saved_data["output"].toInt();
    const at::Tensor y = output < 0 ? saved[0].tanh() : saved[static_cast<std::size_t>(output)];
    return {gradients[0] * (1 - y * y), at::Tensor(), at::Tensor()};
  }
};

class OwnFunction : public testing::TestWithParam<Saves> {};

TEST_P(OwnFunction, IsGoneAfterBackwardWithAllThatItSaved) {
  std::vector<Weak> results;
  const auto function = [&](const at::Tensor& x) {
    return Tanh::apply(x.sin(), GetParam(), &results) + 1;
  };
  const at::Tensor x = torch::linspace(-2, 2, 40).requires_grad_();
  recompute(function, x).sum().backward();
  const at::Tensor same = x.detach().requires_grad_();
  same.sin().tanh().sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), same.grad()));
  ASSERT_EQ(results.size(), 2u);
  for (const Weak& result : results) EXPECT_TRUE(result.expired());
}

INSTANTIATE_TEST_SUITE_P(Saving, OwnFunction,
                         testing::Values(Saves::output, Saves::output_first, Saves::input));

}  // namespace
}  // namespace demi

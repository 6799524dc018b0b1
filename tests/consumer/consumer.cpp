// A user's program: one mixed step through what demi/demi.h offers. Exits with 0 only if the step was right.
#include <demi/autocast/autocast.h>
#include <demi/demi.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

int main() {
  torch::nn::Linear model(8, 4);
  const at::Tensor input = at::ones({2, 8});
  at::Tensor output;
  {
    demi::Autocast region(at::kCPU, at::kBFloat16);
    output = model(input);
  }
  output.to(at::kFloat).sum().backward();
  // d sum(x W^T + b) / dW is the column sum of x: 2 everywhere, exact in bf16.
  const bool right = output.scalar_type() == at::kBFloat16 &&
                     model->weight.scalar_type() == at::kFloat &&
                     at::equal(model->weight.grad().to(at::kFloat), at::full({4, 8}, 2.0F));
  std::cout << (right ? "right" : "wrong") << '\n';
  return right ? 0 : 1;
}

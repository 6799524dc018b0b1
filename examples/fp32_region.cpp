// An FP32 region inside a mixed precision one: a part that needs the digits gets FP32 inputs and
// runs as given.
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "demi/demi.h"

int main() {
  torch::nn::Linear layer(8, 8);
  const auto x = torch::randn({4, 8});

  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  const auto hidden = layer->forward(x);  // bf16

  at::Tensor gram;
  {
    demi::Autocast fp32(torch::kCPU, demi::AutocastOptions{.enabled = false});
    const auto exact =
        hidden.to(torch::kFloat);  // ops in a disabled region run as given: cast what comes in
    gram = torch::mm(exact, exact.t());  // fp32
  }
  const auto after = torch::mm(gram, gram);  // bf16 again

  std::cout << hidden.dtype() << " -> " << gram.dtype() << " -> " << after.dtype() << "\n";
  const bool right = hidden.scalar_type() == torch::kBFloat16 &&
                     gram.scalar_type() == torch::kFloat && after.scalar_type() == torch::kBFloat16;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

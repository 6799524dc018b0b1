// An FP32 region inside a mixed precision one: a part that needs the digits gets FP32 inputs and
// runs as given.
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "demi/demi.h"
#include "examples/arguments.h"

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::nn::Linear layer(8, 8);
  layer->to(device);
  const auto x = torch::randn({4, 8}, device);

  demi::Autocast region(device.type(), dtype);
  const auto hidden = layer->forward(x);  // 16 bits

  at::Tensor gram;
  {
    demi::Autocast fp32(device.type(), demi::AutocastOptions{.enabled = false});
    const auto exact =
        hidden.to(torch::kFloat);  // ops in a disabled region run as given: cast what comes in
    gram = torch::mm(exact, exact.t());  // fp32
  }
  const auto after = torch::mm(gram, gram);  // 16 bits again

  std::cout << hidden.dtype() << " -> " << gram.dtype() << " -> " << after.dtype() << "\n";
  const bool right = hidden.scalar_type() == dtype && gram.scalar_type() == torch::kFloat &&
                     after.scalar_type() == dtype;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

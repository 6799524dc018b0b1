// An FP32 region inside a mixed precision one: a part that needs the digits gets FP32 inputs and
// runs as given. And a part of a model that runs in FP32 wherever it is called.
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

  demi::apply(demi::Policy("float32"), *layer);  // ops that take its parameters
  const auto exact_hidden = layer->forward(x);   // fp32

  std::cout << hidden.dtype() << " -> " << gram.dtype() << " -> " << after.dtype()
            << ", with a policy " << exact_hidden.dtype() << "\n";
  const bool right = hidden.scalar_type() == dtype && gram.scalar_type() == torch::kFloat &&
                     after.scalar_type() == dtype && exact_hidden.scalar_type() == torch::kFloat;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

// An operator of one's own with an autocast rule: its inputs arrive in the region's dtype.
#include <torch/library.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "demi/demi.h"
#include "examples/arguments.h"

static at::Tensor scaled_product(const at::Tensor& x, const at::Tensor& w, double scale) {
  return x.mm(w) * scale;
}

TORCH_LIBRARY(example, library) {
  library.def("scaled_product(Tensor x, Tensor w, float scale) -> Tensor");
}
TORCH_LIBRARY_IMPL(example, CompositeImplicitAutograd, library) {
  library.impl("scaled_product", scaled_product);
}

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  demi::register_autocast("example::scaled_product", demi::OpCategory::lower_precision,
                          device.type());
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("example::scaled_product", "")
                      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
  const auto x = torch::randn({4, 8}, device);
  const auto w = torch::randn({8, 2}, device).set_requires_grad(true);

  at::Tensor y;
  {
    demi::Autocast region(device.type(), dtype);
    y = op.call(x, w, 0.5);
  }
  y.sum().backward();
  const auto outside = op.call(x, w, 0.5);
  std::cout << "in a region " << y.dtype() << ", outside " << outside.dtype() << "\n";
  const bool right =
      y.scalar_type() == dtype && outside.scalar_type() == torch::kFloat && w.grad().defined();
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

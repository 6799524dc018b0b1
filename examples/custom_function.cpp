// A torch::autograd::Function in autocast regions: custom_fwd and custom_bwd of Python's torch.amp.
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "demi/demi.h"
#include "examples/arguments.h"

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y = x w, in the region's dtype; backward runs in the same one although it is called outside the
// region.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    demi::CustomForward autocast(ctx, x.device().type());
    ctx->save_for_backward({x, w});
    return x.mm(w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    demi::CustomBackward autocast(ctx);
    const auto saved = ctx->get_saved_variables();
    return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0])};
  }
};

// The same with cast_inputs = FP32: a kernel that takes nothing else.
struct Fp32Product : torch::autograd::Function<Fp32Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    demi::CustomForward autocast(ctx, x.device().type(), torch::kFloat);
    const auto a = autocast.cast(x), b = autocast.cast(w);
    ctx->save_for_backward({a, b});
    return a.mm(b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    demi::CustomBackward autocast(ctx);
    const auto saved = ctx->get_saved_variables();
    return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0])};
  }
};

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  const auto x = torch::randn({4, 8}, device);
  const auto w = torch::randn({8, 2}, device).set_requires_grad(true);
  at::Tensor low, exact;
  {
    demi::Autocast region(device.type(), dtype);
    low = Product::apply(x, w);
    exact = Fp32Product::apply(x.to(dtype), w);
  }
  (low.to(torch::kFloat).sum() + exact.sum()).backward();
  std::cout << low.dtype() << " and " << exact.dtype() << ", gradient " << w.grad().dtype() << "\n";
  const bool right = low.scalar_type() == dtype && exact.scalar_type() == torch::kFloat &&
                     w.grad().scalar_type() == torch::kFloat;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

#include "demi/batch_norm/batch_norm.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/max_pool2d.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "demi/batch_norm/call.h"
#include "demi/core/error.h"

namespace demi {
namespace {

using Optional = std::optional<at::Tensor>;

Optional given(const at::Tensor& tensor) {
  return tensor.defined() ? Optional(tensor) : Optional();
}

void check(const batch_norm::Call& call) {
  const at::Tensor& x = call.input;
  if (call.options.training && x.dim() >= 2 && x.size(1) > 0 && x.numel() == x.size(1))
    refuse({.where = "batch_norm.batch_norm_relu",
            .what = "one value a channel has no variance to train with",
            .seen = fmt::format("an input of shape ({})", fmt::join(x.sizes(), ", ")),
            .accepted = "two values a channel or more",
            .advice = "use a larger batch, or evaluation"});
  if (!call.options.training && !(call.running_mean.defined() && call.running_var.defined()))
    refuse({.where = "batch_norm.batch_norm_relu",
            .what = "without training the statistics are the running ones, which are missing",
            .accepted = "running_mean and running_var"});
}

// The operator's kernel for each device, above autograd: what it calls is differentiated.
at::Tensor compute(const at::Tensor& input, const Optional& weight, const Optional& bias,
                   const Optional& running_mean, const Optional& running_var, const Optional& add,
                   bool training, double momentum, double eps, bool relu, at::IntArrayRef pool) {
  const auto or_none = [](const Optional& tensor) { return tensor.value_or(at::Tensor()); };
  batch_norm::Call call{
      input,
      or_none(weight),
      or_none(bias),
      or_none(running_mean),
      or_none(running_var),
      {.training = training, .momentum = momentum, .eps = eps, .relu = relu, .add = or_none(add)}};
  if (!pool.empty()) {
    TORCH_CHECK(pool.size() == 6, "demi::batch_norm_relu: pool has ", pool.size(),
                " numbers, of 0 or 6 (size, stride, padding)");
    call.options.pool = {{pool[0], pool[1]}, {pool[2], pool[3]}, {pool[4], pool[5]}};
  }
  check(call);
  const batch_norm::Engine engine = engine_for(call);
  if (!engine) return composed(call);
  if (!call.pools() || pools_by_kernels(call)) return fused(call, engine);
  const MaxPooling windows = std::exchange(call.options.pool, {});
  return at::max_pool2d(fused(call, engine), windows.size, windows.stride, windows.padding);
}

TORCH_LIBRARY_FRAGMENT(demi, library) {
  library.def(
      "batch_norm_relu(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
      "Tensor(b!)? running_var, Tensor? add, bool training, float momentum, float eps, bool relu, "
      "int[] pool) -> Tensor");
  library.impl("batch_norm_relu",
               torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(compute)));
}

}  // namespace

at::Tensor batch_norm_relu(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var, const BatchNormRelu& o) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("demi::batch_norm_relu", "")
                             .typed<decltype(compute)>();
  std::array<std::int64_t, 6> pool{o.pool.size[0],   o.pool.size[1],    o.pool.stride[0],
                                   o.pool.stride[1], o.pool.padding[0], o.pool.padding[1]};
  return op.call(input, given(weight), given(bias), given(running_mean), given(running_var),
                 given(o.add), o.training, o.momentum, o.eps, o.relu,
                 o.pool == MaxPooling{} ? at::IntArrayRef() : at::IntArrayRef(pool));
}

}  // namespace demi

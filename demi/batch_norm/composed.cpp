#include <ATen/ATen.h>

#include "demi/batch_norm/call.h"

namespace demi::batch_norm {

at::Tensor composed(const Call& call) {
  const BatchNormRelu& o = call.options;
  at::Tensor y =
      at::batch_norm(call.input, call.weight, call.bias, call.running_mean, call.running_var,
                     o.training, o.momentum, o.eps, at::globalContext().userEnabledCuDNN());
  // Nothing else holds the normalisation's result, and its backward does not read it. Policies are
  // of operators that are not in place.
  const bool in_place = !has_rules(call);
  const bool adds_in_place = in_place && o.add.defined() && o.add.sizes() == y.sizes() &&
                             o.add.scalar_type() == y.scalar_type();
  if (o.add.defined()) y = adds_in_place ? y.add_(o.add) : y + o.add;
  if (o.relu) y = in_place ? at::relu_(y) : at::relu(y);
  return call.pools() ? at::max_pool2d(y, o.pool.size, o.pool.stride, o.pool.padding) : y;
}

}  // namespace demi::batch_norm

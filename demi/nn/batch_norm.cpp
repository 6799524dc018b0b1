#include "demi/nn/batch_norm.h"

#include <ATen/core/grad_mode.h>

#include <typeinfo>

#include "demi/nn/cloneable.h"
#include "demi/nn/require.h"

namespace demi::nn {

BatchNorm2dOptions& BatchNorm2dOptions::relu(bool on) {
  relu_ = on;
  return *this;
}

BatchNorm2dOptions& BatchNorm2dOptions::pool(std::int64_t size) {
  return pool(MaxPooling{{size, size}, {size, size}, {0, 0}});
}

BatchNorm2dOptions& BatchNorm2dOptions::pool(const MaxPooling& windows) {
  pool_ = windows;
  return *this;
}

namespace {

const BatchNorm2dOptions& checked(const BatchNorm2dOptions& options) {
  const auto is_positive = [](const auto& two) { return two[0] >= 1 && two[1] >= 1; };
  const MaxPooling& pool = options.pool();
  require("nn.BatchNorm2d", options.num_features() >= 0, "num_features is negative",
          options.num_features(), "0 or more");
  require("nn.BatchNorm2d", is_positive(pool.size), "the pool's size is too small",
          at::IntArrayRef(pool.size), "1 or more");
  require("nn.BatchNorm2d", is_positive(pool.stride), "the pool's stride is too small",
          at::IntArrayRef(pool.stride), "1 or more");
  return options;
}

}  // namespace

BatchNorm2dImpl::BatchNorm2dImpl(const BatchNorm2dOptions& options)
    : torch::nn::BatchNorm2dImpl(checked(options)), own_(options) {}

at::Tensor BatchNorm2dImpl::forward(const at::Tensor& input) { return forward_add(input, {}); }

at::Tensor BatchNorm2dImpl::forward_add(const at::Tensor& input, const at::Tensor& add) {
  _check_input_dim(input);
  const bool tracks = options.track_running_stats();
  double momentum = options.momentum().value_or(0);
  if (is_training() && tracks && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    // Without a momentum the running statistics are the mean over all batches.
    if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();
  }
  return batch_norm_relu(input, weight, bias, running_mean, running_var,
                         {.training = is_training() || !tracks,
                          .momentum = momentum,
                          .eps = options.eps(),
                          .relu = own_.relu(),
                          .add = add,
                          .pool = own_.pool()});
}

std::shared_ptr<torch::nn::Module> BatchNorm2dImpl::clone(
    const std::optional<torch::Device>& device) const {
  require_type(*this, typeid(BatchNorm2dImpl));
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<BatchNorm2dImpl>(own_);
  copy->options = options;
  copy->train(is_training());
  const auto give = [&](const auto& from, auto to) {
    for (const auto& one : from) {
      const at::Tensor& tensor = one.value();
      to[one.key()].set_data(device && tensor.device() != *device ? tensor.to(*device)
                                                                  : tensor.clone());
    }
  };
  give(named_parameters(/*recurse=*/false), copy->named_parameters(/*recurse=*/false));
  give(named_buffers(/*recurse=*/false), copy->named_buffers(/*recurse=*/false));
  complete_copy(*this, *copy);
  return copy;
}

void BatchNorm2dImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "demi::nn::BatchNorm2d(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "None";
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ", relu=" << own_.relu();
  if (own_.pool() != MaxPooling{})
    stream << ", pool=" << at::IntArrayRef(own_.pool().size)
           << ", stride=" << at::IntArrayRef(own_.pool().stride)
           << ", padding=" << at::IntArrayRef(own_.pool().padding);
  stream << ')';
}

}  // namespace demi::nn

#include "demi/distributed/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/ops/batch_norm_native.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/batch_norm/synchronised_layers.h"
#include "demi/core/error.h"
#include "demi/core/local_pass.h"
#include "demi/distributed/process_group.h"

namespace demi::distributed {
namespace {

c10::ScalarType accumulation_of(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// All but the channels, which are the second.
std::vector<std::int64_t> summed_dimensions(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

// (C) as (1, C, 1, 1), so that it broadcasts over the channels.
at::Tensor beside(const at::Tensor& channels, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return channels.view(shape);
}

struct Statistics {
  at::Tensor mean, variance;  // (C) FP64, of all ranks; the variance is that of the batch
  double count = 0;           // of elements of a channel
};

// Computes the statistics from each rank's count, mean and variance: sums of x and of x^2, in FP64.
// A rank without an example adds nothing.
Statistics statistics_of(const at::Tensor& input, ProcessGroup& group) {
  const std::int64_t channels = input.size(1);
  const std::int64_t elements = input.numel() / channels;
  const auto own = static_cast<double>(elements);
  at::Tensor mean64 = at::zeros({channels}, input.options().dtype(at::kDouble));
  at::Tensor variance64 = mean64;
  if (elements > 0) {
    const auto [variance, mean] = at::var_mean(input.to(accumulation_of(input)),
                                               summed_dimensions(input), /*unbiased=*/false);
    mean64 = mean.to(at::kDouble);
    variance64 = variance.to(at::kDouble);
  }
  const at::Tensor sums = at::cat({mean64 * own, (variance64 + mean64 * mean64) * own,
                                   at::full({1}, own, mean64.options())})
                              .contiguous();
  group.start_all_reduce(sums).wait();
  const double count = sums[2 * channels].item<double>();
  const double divisor = std::max(count, 1.0);  // no rank has an example: 0
  const at::Tensor all_mean = sums.narrow(0, 0, channels) / divisor;
  const at::Tensor squares = sums.narrow(0, channels, channels) / divisor;
  return {all_mean, (squares - all_mean * all_mean).clamp_min(0), count};
}

// y = (x - mean) / deviation * weight + bias, whose mean and deviation depend on all ranks' x.
struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& inverse_deviation,
                            double count, ProcessGroup* group) {
    context->save_for_backward({input, weight, mean, inverse_deviation});
    context->saved_data["count"] = count;
    context->saved_data["group"] = reinterpret_cast<std::int64_t>(group);
    const at::Tensor x_hat =
        (input.to(mean.scalar_type()) - beside(mean, input)) * beside(inverse_deviation, input);
    return (x_hat * beside(weight, input) + beside(bias, input)).to(input.scalar_type());
  }

  // Ioffe and Szegedy 2015, section 3: dx = w / deviation * (dy - mean(dy) - x_hat mean(dy x_hat)),
  // with means over all ranks. The gradients of weight and bias are this rank's, to be averaged
  // like others.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const double count = context->saved_data["count"].toDouble();
    auto* group = reinterpret_cast<ProcessGroup*>(context->saved_data["group"].toInt());
    const auto dimensions = summed_dimensions(input);
    const at::Tensor dy = gradients[0].to(mean.scalar_type());
    const at::Tensor x_hat =
        (input.to(mean.scalar_type()) - beside(mean, input)) * beside(inverse, input);
    const at::Tensor sum = dy.sum(dimensions), product_sum = (dy * x_hat).sum(dimensions);
    const at::Tensor all = at::cat({sum, product_sum}).to(at::kDouble).contiguous();
    group->start_all_reduce(all).wait();
    const at::Tensor means = (all / count).to(mean.scalar_type());
    const std::int64_t channels = input.size(1);
    const at::Tensor dx = (dy - beside(means.narrow(0, 0, channels), input) -
                           x_hat * beside(means.narrow(0, channels, channels), input)) *
                          beside(inverse * weight.to(mean.scalar_type()), input);
    return {dx.to(input.scalar_type()),
            product_sum.to(weight.scalar_type()),
            sum.to(weight.scalar_type()),
            {},
            {},
            {},
            {}};
  }
};

at::Tensor over_ranks(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, at::Tensor running_mean,
                      at::Tensor running_var, double momentum, double eps, ProcessGroup& group) {
  Statistics all;
  at::Tensor mean, inverse;
  {
    const at::NoGradGuard no_grad;
    all = statistics_of(input.detach(), group);
    mean = all.mean.to(accumulation_of(input));
    inverse = (all.variance + eps).rsqrt().to(accumulation_of(input));
    // The running variance is the unbiased one, as in torch::nn, which moves nothing for no
    // example.
    const auto move = [momentum](at::Tensor& running, const at::Tensor& now) {
      running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
    };
    if (all.count > 0) {
      move(running_mean, all.mean);
      move(running_var, all.variance * (all.count / (all.count - 1)));
    }
  }
  const bool is_affine = weight && weight->defined();
  return Normalise::apply(input, is_affine ? *weight : at::ones_like(mean),
                          is_affine ? *bias : at::zeros_like(mean), mean, inverse, all.count,
                          &group);
}

// Replaces aten::batch_norm. A C++ module's members cannot be exchanged, and their forward is not
// virtual, but all of them call this operator.
at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const bool may_be = training && !is_local_pass() && running_mean && running_mean->defined();
  ProcessGroup* group = may_be ? batch_norm::group_of(*running_mean) : nullptr;
  if (!group)
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training,
                                  momentum, eps, cudnn_enabled);
  return over_ranks(input, weight, bias, *running_mean, *running_var, momentum, eps, *group);
}

void replace_operator() {
  static std::vector<std::unique_ptr<torch::Library>> all = [] {
    std::vector<std::unique_ptr<torch::Library>> made;
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      made.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__,
                                                      static_cast<std::uint32_t>(__LINE__)));
      made.back()->impl("batch_norm", TORCH_FN(batch_norm));
    }
    return made;
  }();
}

// Running means of the batch normalisations, by name; undefined for one that keeps none.
std::vector<std::pair<std::string, at::Tensor>> running_means(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const auto add = [&](const std::string& name, const torch::nn::Module& module) {
    if (const auto* norm = dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module))
      all.emplace_back(name, norm->running_mean);
    else if (const auto* norm2d = dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module))
      all.emplace_back(name, norm2d->running_mean);
    else if (const auto* norm3d = dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module))
      all.emplace_back(name, norm3d->running_mean);
    else if (const auto buffers = module.named_buffers(/*recurse=*/false);
             const at::Tensor* mean = buffers.find("running_mean"))  // of an imported network
      all.emplace_back(name, *mean);
  };
  add("the model", model);  // which may be on the stack
  for (const auto& part : model.named_modules("", /*include_self=*/false))
    add(part.key(), *part.value());
  return all;
}

}  // namespace

std::int64_t synchronise_batch_norm(torch::nn::Module& model, ProcessGroup& group) {
  if (group.world_size() == 1) return 0;
  const auto means = running_means(model);
  for (const auto& [name, mean] : means)
    if (!mean.defined())
      refuse({.where = "distributed.synchronise_batch_norm",
              .what = "a batch normalisation cannot be synchronised",
              .seen = name + ", which keeps no running mean",
              .accepted = "those with track_running_stats = true",
              .advice = "leave it on"});
  replace_operator();
  std::int64_t count = 0;
  for (const auto& [name, mean] : means) count += batch_norm::synchronise(mean, group) ? 1 : 0;
  return count;
}

bool has_synchronised_batch_norm(const torch::nn::Module& model) {
  for (const auto& [name, mean] : running_means(model))
    if (mean.defined() && batch_norm::group_of(mean)) return true;
  return false;
}

LocalBatchNorm::LocalBatchNorm() : before_(set_local_pass(true)) {}
LocalBatchNorm::~LocalBatchNorm() { set_local_pass(before_); }

}  // namespace demi::distributed

#include "demi/distributed/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/distributed/process_group.h"

namespace demi::distributed {
namespace {

thread_local int local_norms = 0;

c10::ScalarType accumulation_of(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// All but the channels, which are the second.
std::vector<std::int64_t> summed_dimensions(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

// (C) as (1, C, 1, 1), so that it meets the channels.
at::Tensor beside(const at::Tensor& channels, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return channels.view(shape);
}

struct Statistics {
  at::Tensor mean, variance;  // (C) FP64, of all ranks; the variance is that of the batch
  double count = 0;           // of elements of a channel
};

// From each rank's count, mean and variance: sums of x and of x^2, in FP64.
Statistics statistics_of(const at::Tensor& input, ProcessGroup& group) {
  const std::int64_t channels = input.size(1);
  const std::int64_t elements = input.numel() / channels;
  const auto own = static_cast<double>(elements);
  const auto [variance, mean] =
      at::var_mean(input.to(accumulation_of(input)), summed_dimensions(input), /*unbiased=*/false);
  const at::Tensor mean64 = mean.to(at::kDouble), variance64 = variance.to(at::kDouble);
  const at::Tensor sums = at::cat({mean64 * own, (variance64 + mean64 * mean64) * own,
                                   at::full({1}, own, mean64.options())})
                              .contiguous();
  group.all_reduce(sums);
  const double count = sums[2 * channels].item<double>();
  const at::Tensor all_mean = sums.narrow(0, 0, channels) / count;
  const at::Tensor squares = sums.narrow(0, channels, channels) / count;
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
  // with means over all ranks. Those of weight and bias are this rank's, to be averaged as others.
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
    group->all_reduce(all);
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

template <class BatchNormImpl>
class Synchronised final : public BatchNormImpl {
 public:
  Synchronised(const BatchNormImpl& same, ProcessGroup& group)
      : BatchNormImpl(same), group_(&group) {}

  at::Tensor forward(const at::Tensor& input) {
    if (!this->is_training() || local_norms > 0) return BatchNormImpl::forward(input);
    this->_check_input_dim(input);
    Statistics all;
    at::Tensor mean, inverse;
    {
      const at::NoGradGuard no_grad;
      all = statistics_of(input.detach(), *group_);
      mean = all.mean.to(accumulation_of(input));
      inverse = (all.variance + this->options.eps()).rsqrt().to(accumulation_of(input));
      if (this->options.track_running_stats()) follow(all);
    }
    if (this->weight.defined())
      return Normalise::apply(input, this->weight, this->bias, mean, inverse, all.count, group_);
    return Normalise::apply(input, at::ones_like(mean), at::zeros_like(mean), mean, inverse,
                            all.count, group_);
  }

 private:
  // The running variance is the unbiased one, as in torch::nn.
  void follow(const Statistics& all) {
    this->num_batches_tracked += 1;
    const double share = this->options.momentum()
                             ? *this->options.momentum()
                             : 1 / this->num_batches_tracked.template item<double>();
    const auto move = [share](at::Tensor& running, const at::Tensor& now) {
      running.mul_(1 - share).add_(now.to(running.scalar_type()), share);
    };
    move(this->running_mean, all.mean);
    move(this->running_var, all.variance * (all.count / (all.count - 1)));
  }

  ProcessGroup* group_;
};

// The module that takes the place of `module`; empty if it is no BatchNorm.
template <class BatchNormImpl>
torch::nn::AnyModule synchronised(const std::shared_ptr<torch::nn::Module>& module,
                                  ProcessGroup& group) {
  const auto norm = std::dynamic_pointer_cast<BatchNormImpl>(module);
  if (!norm || std::dynamic_pointer_cast<Synchronised<BatchNormImpl>>(module)) return {};
  return torch::nn::AnyModule(std::make_shared<Synchronised<BatchNormImpl>>(*norm, group));
}

torch::nn::AnyModule replacement_of(const std::shared_ptr<torch::nn::Module>& module,
                                    ProcessGroup& group) {
  for (const auto make :
       {synchronised<torch::nn::BatchNorm1dImpl>, synchronised<torch::nn::BatchNorm2dImpl>,
        synchronised<torch::nn::BatchNorm3dImpl>})
    if (torch::nn::AnyModule made = make(module, group); !made.is_empty()) return made;
  return {};
}

// Sequential calls the modules of a list of its own, beside its children.
void replace_in(torch::nn::SequentialImpl& parent, std::size_t place, torch::nn::AnyModule made) {
  const std::string name = parent.named_children().keys()[place];
  parent.replace_module(name, made.ptr());
  *(parent.begin() + static_cast<std::ptrdiff_t>(place)) = std::move(made);
}

}  // namespace

std::int64_t synchronise_batch_norm(torch::nn::Module& model, ProcessGroup& group) {
  if (group.world_size() == 1) return 0;
  struct Found {
    torch::nn::SequentialImpl* parent;
    std::size_t place;
    torch::nn::AnyModule made;
  };
  std::vector<Found> found;
  const auto look_into = [&](torch::nn::Module& parent) {
    auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent);
    const auto children = parent.named_children();
    for (std::size_t place = 0; place < children.size(); ++place) {
      torch::nn::AnyModule made = replacement_of(children[place].value(), group);
      if (made.is_empty()) continue;
      if (!sequential)
        throw UsageError({"distributed.synchronise_batch_norm",
                          "a batch normalisation cannot be replaced", children[place].key(),
                          "those in a torch::nn::Sequential",
                          "put it into one: C++ cannot change the type of a member"});
      found.push_back({sequential, place, std::move(made)});
    }
  };
  look_into(model);
  for (const auto& part : model.modules(/*include_self=*/false)) look_into(*part);
  for (Found& one : found) replace_in(*one.parent, one.place, std::move(one.made));
  return static_cast<std::int64_t>(found.size());
}

LocalBatchNorm::LocalBatchNorm() { ++local_norms; }
LocalBatchNorm::~LocalBatchNorm() { --local_norms; }

}  // namespace demi::distributed

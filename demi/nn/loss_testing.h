#pragma once

#include <torch/torch.h>

// A head with targets, and the truth of its losses and gradients.
namespace demi::nn {

struct Head {
  at::Tensor input, weight, bias, target, counts, class_weight;
};

/// 37 rows, of which every fifth does not count, and more classes than a thread block has threads.
inline Head head(bool with_bias, bool with_weights, int64_t classes = 611) {
  torch::manual_seed(3);
  Head h{.input = torch::randn({37, 24}), .weight = torch::randn({classes, 24})};
  h.target = torch::randint(classes, {37});
  h.counts = torch::arange(37).remainder(5).ne(4);
  h.target.masked_fill_(h.counts.logical_not(), 0);
  if (with_bias) h.bias = torch::randn({classes});
  if (with_weights) h.class_weight = torch::rand({classes});
  return h;
}

struct Truth {
  at::Tensor losses, input, weight, bias;
};

/// torch.nn.CrossEntropyLoss in FP64, and the gradients of sum(losses * row_scale).
inline Truth in_fp64(const Head& h, const at::Tensor& row_scale, double smoothing, double softcap) {
  const auto wide = [](const at::Tensor& t) {
    return t.defined() ? t.to(at::kDouble).requires_grad_() : t;
  };
  const at::Tensor input = wide(h.input), weight = wide(h.weight), bias = wide(h.bias);
  at::Tensor z = input.mm(weight.t());
  if (bias.defined()) z = z + bias;
  if (softcap > 0) z = softcap * (z / softcap).tanh();
  const at::Tensor class_weight =
      h.class_weight.defined() ? h.class_weight.to(at::kDouble) : at::Tensor();
  const at::Tensor losses =
      at::cross_entropy_loss(z, h.target.masked_fill(h.counts.logical_not(), -100), class_weight,
                             at::Reduction::None, -100, smoothing);
  (losses * row_scale.to(at::kDouble)).sum().backward();
  return {losses.detach(), input.grad(), weight.grad(),
          bias.defined() ? bias.grad() : at::Tensor()};
}

inline double error_of(const at::Tensor& seen, const at::Tensor& truth) {
  return ((seen.to(at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

}  // namespace demi::nn

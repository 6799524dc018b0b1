#include "demi/nn/feed_forward.h"

#include <ATen/ATen.h>

#include "demi/activation/gelu.h"
#include "demi/nn/linear.h"
#include "demi/nn/require.h"

namespace demi::nn {
namespace {

constexpr std::string_view kFeedForward = "nn.FeedForward";

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::swiglu:
      return "swiglu";
    case Activation::squared_relu:
      break;
  }
  return "squared_relu";
}

}  // namespace

std::int64_t hidden_width(const FeedForwardOptions& o) {
  require_size(kFeedForward, "width", o.width);
  require(kFeedForward, o.hidden >= 0, "hidden is too small", o.hidden, "0 (the default) or more");
  if (o.hidden != 0) return o.hidden;
  if (o.activation != Activation::swiglu) return 4 * o.width;
  return (8 * o.width / 3 + 63) / 64 * 64;
}

FeedForwardImpl::FeedForwardImpl(const FeedForwardOptions& options) : options_(options) {
  require_probability(kFeedForward, "dropout", options.dropout);
  FeedForwardImpl::reset();
}

void FeedForwardImpl::reset() {
  const FeedForwardOptions& o = options_;
  const std::int64_t hidden = hidden_width(o);
  const auto linear = [&](std::int64_t from, std::int64_t to) {
    return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(o.bias));
  };
  if (o.activation == Activation::swiglu) gate = register_module("gate", linear(o.width, hidden));
  up = register_module("up", linear(o.width, hidden));
  down = register_module("down", linear(hidden, o.width));
}

void FeedForwardImpl::pretty_print(std::ostream& stream) const {
  stream << "demi::nn::FeedForward(" << options_.width << ", hidden=" << hidden_width(options_)
         << ", activation=" << name_of(options_.activation) << ", dropout=" << options_.dropout
         << ")";
}

at::Tensor FeedForwardImpl::activated(const at::Tensor& x) {
  const at::Tensor risen = nn::linear(up, x);
  switch (options_.activation) {
    case Activation::gelu:
      return at::gelu(risen);
    case Activation::gelu_tanh:
      return demi::gelu(risen, "tanh");
    case Activation::squared_relu:
      return at::relu(risen).square();
    case Activation::swiglu:
      break;
  }
  return at::silu(nn::linear(gate, x)) * risen;
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  require_features(kFeedForward, x, options_.width);
  return at::dropout(nn::linear(down, activated(x)), options_.dropout, is_training());
}

}  // namespace demi::nn

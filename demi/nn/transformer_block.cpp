#include "demi/nn/transformer_block.h"

#include <utility>

#include "demi/nn/linear.h"

namespace demi::nn {
namespace {

/// The dtype that both of its first layers cast x to, or x's.
at::ScalarType dtype_of_input(const FeedForward& part, const at::Tensor& x) {
  const at::ScalarType dtype = nn::dtype_of_input(part->up, x);
  return part->gate && nn::dtype_of_input(part->gate, x) != dtype ? x.scalar_type() : dtype;
}

at::Tensor sum_of(const Residual& x) { return x.branch.defined() ? x.stream + x.branch : x.stream; }

}  // namespace

TransformerBlockImpl::TransformerBlockImpl(const TransformerBlockOptions& options)
    : options_(options) {
  TransformerBlockImpl::reset();
}

void TransformerBlockImpl::reset() {
  const TransformerBlockOptions& o = options_;
  const NormOptions norm{
      .width = o.width, .kind = o.norm, .weight = o.norm_weight, .bias = o.bias, .eps = o.eps};
  norm1 = register_module("norm1", Norm(norm));
  attention = register_module(
      "attention", SelfAttention(SelfAttentionOptions{.width = o.width,
                                                      .heads = o.heads,
                                                      .key_heads = o.key_heads,
                                                      .bias = o.bias,
                                                      .qk_norm = o.qk_norm,
                                                      .qk_norm_weight = o.norm_weight,
                                                      .qk_norm_eps = o.eps,
                                                      .attention_dropout = o.attention_dropout,
                                                      .residual_dropout = o.residual_dropout}));
  norm2 = register_module("norm2", Norm(norm));
  feed_forward = register_module("feed_forward",
                                 FeedForward(FeedForwardOptions{.width = o.width,
                                                                .hidden = o.hidden,
                                                                .activation = o.activation,
                                                                .bias = o.bias,
                                                                .dropout = o.residual_dropout}));
}

void TransformerBlockImpl::pretty_print(std::ostream& stream) const {
  stream << "demi::nn::TransformerBlock(pre_norm=" << (options_.pre_norm ? "true" : "false") << ")";
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x, const TokenContext& context,
                                         KeyValueCache* cache) {
  return sum_of(forward_residual({.stream = x}, context, cache));
}

Residual TransformerBlockImpl::forward_residual(Residual x, const TokenContext& context,
                                                KeyValueCache* cache) {
  if (!options_.pre_norm) {
    const at::Tensor sum = sum_of(x);
    const at::Tensor seen = norm1->forward_add(sum, attention->forward(sum, context, cache)).norm;
    return {.stream = norm2->forward_add(seen, feed_forward->forward(seen)).norm};
  }
  // Each tensor is let go where backward alone may want it.
  SumAndNorm before =
      norm1->forward_add(x.stream, x.branch, dtype_of_input(attention->qkv, x.stream));
  x = {};
  at::Tensor attended = attention->forward(std::exchange(before.norm, {}), context, cache);
  SumAndNorm between =
      norm2->forward_add(before.sum, attended, dtype_of_input(feed_forward, before.sum));
  before = {};
  attended.reset();
  at::Tensor fed = feed_forward->forward(std::exchange(between.norm, {}));
  return {.stream = std::move(between.sum), .branch = std::move(fed)};
}

}  // namespace demi::nn

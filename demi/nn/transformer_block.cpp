#include "demi/nn/transformer_block.h"

namespace demi::nn {

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
  if (options_.pre_norm) {
    const at::Tensor seen = x + attention->forward(norm1->forward(x), context, cache);
    return seen + feed_forward->forward(norm2->forward(seen));
  }
  const at::Tensor seen = norm1->forward(x + attention->forward(x, context, cache));
  return norm2->forward(seen + feed_forward->forward(seen));
}

}  // namespace demi::nn

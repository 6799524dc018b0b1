#include "demi/nn/self_attention.h"

#include <ATen/ATen.h>

#include <tuple>
#include <vector>

#include "demi/attention/attention.h"
#include "demi/nn/linear.h"
#include "demi/nn/require.h"

namespace demi::nn {
namespace {

constexpr std::string_view kSelfAttention = "nn.SelfAttention";

SelfAttentionOptions checked(SelfAttentionOptions o) {
  require_size(kSelfAttention, "width", o.width);
  require_size(kSelfAttention, "heads", o.heads);
  require(kSelfAttention, o.width % o.heads == 0, "heads do not divide the width", o.heads,
          "a divisor of " + std::to_string(o.width));
  if (o.key_heads == 0) o.key_heads = o.heads;
  require(kSelfAttention, o.key_heads > 0 && o.heads % o.key_heads == 0,
          "key_heads do not divide the heads", o.key_heads,
          "a divisor of " + std::to_string(o.heads));
  require_probability(kSelfAttention, "attention_dropout", o.attention_dropout);
  require_probability(kSelfAttention, "residual_dropout", o.residual_dropout);
  return o;
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(const SelfAttentionOptions& options)
    : options_(checked(options)) {
  SelfAttentionImpl::reset();
}

void SelfAttentionImpl::reset() {
  const SelfAttentionOptions& o = options_;
  const std::int64_t size = o.width / o.heads, rows = (o.heads + 2 * o.key_heads) * size;
  const auto layer = [&](std::int64_t to) {
    return torch::nn::Linear(torch::nn::LinearOptions(o.width, to).bias(o.bias));
  };
  qkv = register_module("qkv", layer(rows));
  out = register_module("out", layer(o.width));
  if (!o.qk_norm) return;
  const NormOptions norm{
      .width = size, .kind = NormKind::rms_norm, .weight = o.qk_norm_weight, .eps = o.qk_norm_eps};
  q_norm = register_module("q_norm", Norm(norm));
  k_norm = register_module("k_norm", Norm(norm));
}

void SelfAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "demi::nn::SelfAttention(" << options_.width << ", heads=" << options_.heads
         << ", key_heads=" << options_.key_heads << ")";
}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& x, const TokenContext& context,
                                      KeyValueCache* cache) {
  const SelfAttentionOptions& o = options_;
  require_floating(kSelfAttention, "the input", x);
  require(kSelfAttention, x.dim() == 3 && x.size(2) == o.width, "the input does not fit", x.sizes(),
          "(N, T, " + std::to_string(o.width) + ")");
  require(kSelfAttention, !cache || !context.cu_seqlens.defined(), "documents take no cache",
          "cu_seqlens", "one document a row");
  const std::int64_t rows = x.size(0), tokens = x.size(1), size = o.width / o.heads;
  // One split: backward joins its parts, where three slices would be three sums of the whole.
  const std::vector<at::Tensor> parts =
      linear(qkv, x).split_with_sizes({o.heads * size, o.key_heads * size, o.key_heads * size}, 2);
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({rows, tokens, part.size(2) / size, size}).transpose(1, 2);
  };
  at::Tensor q = by_head(parts[0]), k = by_head(parts[1]), v = by_head(parts[2]);
  if (q_norm) q = q_norm->forward(q), k = k_norm->forward(k);
  if (context.rotary.defined()) q = rotate(q, context.rotary), k = rotate(k, context.rotary);
  const std::int64_t past = cache ? cache->tokens() : 0;
  if (cache) std::tie(k, v) = cache->append(k, v);
  // One token sees all keys: said so, it is no mask.
  const bool is_causal = context.causal && (tokens > 1 || !cache);
  const at::Tensor seen = attention(q, k, v,
                                    {.cu_seqlens = context.cu_seqlens,
                                     .causal = is_causal,
                                     .past = is_causal ? past : 0,
                                     .mask = context.mask,
                                     .dropout = is_training() ? o.attention_dropout : 0});
  const at::Tensor result = linear(out, seen.transpose(1, 2).reshape({rows, tokens, o.width}));
  return at::dropout(result, o.residual_dropout, is_training());
}

}  // namespace demi::nn

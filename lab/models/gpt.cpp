#include "lab/models/gpt.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "lab/models/check.h"

namespace demi::models {
namespace {

constexpr std::string_view kGpt = "models.GPT";
constexpr double kSoftCap = 15;

nn::TransformerBlockOptions block_options(const GPTOptions& o) {
  const bool is_gpt2 = o.form == GPTForm::gpt2, is_nanochat = o.form == GPTForm::nanochat;
  return {.width = o.width,
          .heads = o.heads,
          .key_heads = o.key_heads,
          .hidden = o.hidden,
          .norm = is_gpt2 ? nn::NormKind::layer_norm : nn::NormKind::rms_norm,
          .norm_weight = !is_nanochat,
          .eps = o.eps,
          .bias = is_gpt2 && o.bias,
          .activation = is_gpt2       ? nn::Activation::gelu_tanh
                        : is_nanochat ? nn::Activation::squared_relu
                                      : nn::Activation::swiglu,
          .qk_norm = is_nanochat,
          .attention_dropout = o.dropout,
          .residual_dropout = o.dropout};
}

nn::Norm norm_of(const GPTOptions& o) {
  const auto block = block_options(o);
  return nn::Norm(nn::NormOptions{.width = o.width,
                                  .kind = block.norm,
                                  .weight = block.norm_weight,
                                  .bias = block.bias,
                                  .eps = block.eps});
}

void check_sizes(const GPTOptions& o) {
  require_positive(kGpt, "vocabulary", o.vocabulary);
  require_positive(kGpt, "context", o.context);
  require_positive(kGpt, "layers", o.layers);
  if (!(o.rope_theta > 0 && std::isfinite(o.rope_theta)))
    refuse({.where = kGpt,
            .what = "rope_theta is out of range",
            .seen = fmt::to_string(o.rope_theta),
            .accepted = "a number above 0"});
}

}  // namespace

int64_t hidden_width(const GPTOptions& o) {
  const auto block = block_options(o);
  return nn::hidden_width(
      {.width = block.width, .hidden = block.hidden, .activation = block.activation});
}

double training_flop(const GPTOptions& o, int64_t tokens) {
  const auto width = double(o.width), hidden = double(hidden_width(o));
  const double keys = width / double(o.heads) * double(o.key_heads == 0 ? o.heads : o.key_heads);
  const bool is_gated = block_options(o).activation == nn::Activation::swiglu;
  const double block =
      width * (width + 2 * keys) + width * width + (is_gated ? 3 : 2) * width * hidden;
  const double weights = double(o.layers) * block + double(o.vocabulary) * width;
  return 6 * weights + 12 * double(o.layers) * double(tokens) * width;
}

GPTImpl::GPTImpl(const GPTOptions& o) : options_(o) {
  check_sizes(o);
  GPTImpl::reset();
}

void GPTImpl::reset() {
  const GPTOptions& o = options_;
  const bool is_gpt2 = o.form == GPTForm::gpt2;
  tokens_ = register_module("tokens", torch::nn::Embedding(o.vocabulary, o.width));
  if (is_gpt2) positions_ = register_module("positions", torch::nn::Embedding(o.context, o.width));
  if (o.form == GPTForm::nanochat) embedding_norm_ = register_module("embedding_norm", norm_of(o));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < o.layers; ++i) blocks_->push_back(nn::TransformerBlock(block_options(o)));
  norm_ = register_module("norm", norm_of(o));
  if (!o.tied_head.value_or(is_gpt2))
    head_ = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(o.width, o.vocabulary).bias(false)));
  initialise();
}

void GPTImpl::initialise() {
  const at::NoGradGuard no_grad;
  const double residual = 0.02 / std::sqrt(2.0 * double(options_.layers));
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    at::Tensor parameter = item.value();
    const bool adds = name.ends_with("out.weight") || name.ends_with("down.weight");
    if (parameter.dim() == 2)
      parameter.normal_(0, adds ? residual : 0.02);
    else if (name.ends_with("bias"))
      parameter.zero_();
  }
}

void GPTImpl::require_rows(const at::Tensor& tokens, int64_t past) const {
  if (tokens.dim() == 2 && past + tokens.size(1) <= options_.context) return;
  refuse({.where = kGpt,
          .what = "the rows of tokens do not fit",
          .seen = fmt::format("({}){}", fmt::join(tokens.sizes(), ", "),
                              past > 0 ? fmt::format(" after {}", past) : ""),
          .accepted = fmt::format("(N, T) with T at most {}", options_.context - past)});
}

at::Tensor GPTImpl::hidden(const at::Tensor& tokens, const at::Tensor& cu_seqlens) {
  require_rows(tokens, 0);
  const at::Tensor positions =
      cu_seqlens.defined()
          ? nn::document_positions(cu_seqlens.to(tokens.device()), tokens.size(0), tokens.size(1))
          : at::arange(tokens.size(1), tokens.options());
  return through_blocks(tokens, positions, cu_seqlens, nullptr);
}

at::Tensor GPTImpl::through_blocks(const at::Tensor& tokens, const at::Tensor& positions,
                                   const at::Tensor& cu_seqlens, Cache* cache) {
  at::Tensor x = tokens_->forward(tokens);
  nn::TokenContext context{.cu_seqlens = cu_seqlens};
  if (positions_)
    x = x + positions_->forward(positions);
  else
    context.rotary =
        nn::rotary_angles(positions, options_.width / options_.heads, options_.rope_theta);
  if (embedding_norm_) x = embedding_norm_->forward(x);
  x = at::dropout(x, options_.dropout, is_training());
  nn::Residual residual{.stream = std::exchange(x, {})};
  for (std::size_t i = 0; i < blocks_->size(); ++i) {
    const auto block = blocks_->ptr<nn::TransformerBlockImpl>(i);
    nn::KeyValueCache* const of_block = cache ? &cache->at(i) : nullptr;
    if (options_.recompute && !cache) {  // which keeps the input: a sum is one tensor, not two
      const auto run = [=](const at::Tensor& t) { return block->forward(t, context); };
      residual.stream = recompute(run, residual.stream, {.keep = *options_.recompute});
    } else {
      residual = block->forward_residual(std::exchange(residual, {}), context, of_block);
    }
  }
  return norm_->forward_add(residual.stream, residual.branch).norm;
}

GPTImpl::Cache GPTImpl::new_cache() const {
  Cache cache;
  for (int64_t i = 0; i < options_.layers; ++i) cache.emplace_back(options_.context);
  return cache;
}

at::Tensor GPTImpl::next(const at::Tensor& tokens, Cache& cache) {
  if (std::ssize(cache) != options_.layers)
    refuse({.where = kGpt,
            .what = "the cache is of another model",
            .seen = fmt::format("{} layers", cache.size()),
            .accepted = fmt::format("{}: new_cache() makes one", options_.layers)});
  const int64_t past = cache.front().tokens();
  require_rows(tokens, past);
  if (tokens.size(1) == 0)
    refuse({.where = kGpt,
            .what = "no tokens to go on from",
            .seen = "none",
            .accepted = "1 or more a row"});
  const at::Tensor positions = at::arange(past, past + tokens.size(1), tokens.options());
  const at::Tensor hidden = through_blocks(tokens, positions, {}, &cache).select(1, -1);
  return capped(at::linear(hidden, head_weight()));
}

const at::Tensor& GPTImpl::head_weight() const { return head_ ? head_->weight : tokens_->weight; }

at::Tensor GPTImpl::capped(const at::Tensor& logits) const {
  if (options_.form != GPTForm::nanochat) return logits;
  const at::Tensor wide = logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
  return kSoftCap * at::tanh(wide / kSoftCap);
}

at::Tensor GPTImpl::forward(const at::Tensor& tokens, const at::Tensor& cu_seqlens) {
  return capped(at::linear(hidden(tokens, cu_seqlens), head_weight()));
}

LossAndRight GPTImpl::loss_and_right(const at::Tensor& tokens, const at::Tensor& targets,
                                     double label_smoothing, const at::Tensor& cu_seqlens) {
  return linear_cross_entropy_and_right(
      hidden(tokens, cu_seqlens), head_weight(), targets,
      {.label_smoothing = label_smoothing,
       .softcap = options_.form == GPTForm::nanochat ? kSoftCap : 0});
}

}  // namespace demi::models

#include "lab/huggingface/names.h"

#include <fmt/format.h>

#include <utility>

namespace demi::huggingface {
namespace {

using models::GPTForm;
using models::GPTOptions;

void add_gpt2_layer(const GPTOptions& o, int64_t layer, std::vector<TensorNames>& all) {
  const std::string own = fmt::format("blocks.{}.", layer), their = fmt::format("h.{}.", layer);
  const auto norm = [&](const char* mine, const char* name) {
    for (const char* part : {".weight", ".bias"})
      all.push_back({own + mine + part, {their + name + part}, {o.width}});
  };
  const auto linear = [&](const char* mine, const char* name, int64_t from, int64_t to) {
    all.push_back(
        {own + mine + ".weight", {their + name + ".weight"}, {to}, {from}, /*is_transposed=*/true});
    all.push_back({own + mine + ".bias", {their + name + ".bias"}, {to}});
  };
  norm("norm1", "ln_1");
  linear("attention.qkv", "attn.c_attn", o.width, 3 * o.width);
  linear("attention.out", "attn.c_proj", o.width, o.width);
  norm("norm2", "ln_2");
  linear("feed_forward.up", "mlp.c_fc", o.width, hidden_width(o));
  linear("feed_forward.down", "mlp.c_proj", hidden_width(o), o.width);
}

void add_llama_layer(const GPTOptions& o, int64_t layer, std::vector<TensorNames>& all) {
  const std::string own = fmt::format("blocks.{}.", layer),
                    their = fmt::format("layers.{}.", layer);
  const int64_t keys = (o.key_heads == 0 ? o.heads : o.key_heads) * (o.width / o.heads);
  const auto matrix = [&](const char* mine, const char* name, int64_t from, int64_t to) {
    all.push_back({own + mine + ".weight", {their + name + ".weight"}, {to}, {from}});
  };
  all.push_back({own + "norm1.weight", {their + "input_layernorm.weight"}, {o.width}});
  all.push_back({own + "attention.qkv.weight",
                 {their + "self_attn.q_proj.weight", their + "self_attn.k_proj.weight",
                  their + "self_attn.v_proj.weight"},
                 {o.width, keys, keys},
                 {o.width}});
  matrix("attention.out", "self_attn.o_proj", o.width, o.width);
  all.push_back({own + "norm2.weight", {their + "post_attention_layernorm.weight"}, {o.width}});
  matrix("feed_forward.gate", "mlp.gate_proj", o.width, hidden_width(o));
  matrix("feed_forward.up", "mlp.up_proj", o.width, hidden_width(o));
  matrix("feed_forward.down", "mlp.down_proj", hidden_width(o), o.width);
}

}  // namespace

std::vector<int64_t> TensorNames::shape_of_theirs(std::size_t part) const {
  std::vector<int64_t> shape{rows[part]};
  shape.insert(shape.end(), more.begin(), more.end());
  if (is_transposed) std::swap(shape.front(), shape.back());
  return shape;
}

std::vector<TensorNames> tensor_names(const GPTOptions& o) {
  const bool is_gpt2 = o.form == GPTForm::gpt2;
  std::vector<TensorNames> all{{"tokens.weight",
                                {is_gpt2 ? "wte.weight" : "embed_tokens.weight"},
                                {o.vocabulary},
                                {o.width}}};
  if (is_gpt2) all.push_back({"positions.weight", {"wpe.weight"}, {o.context}, {o.width}});
  for (int64_t layer = 0; layer < o.layers; ++layer)
    (is_gpt2 ? add_gpt2_layer : add_llama_layer)(o, layer, all);
  all.push_back({"norm.weight", {is_gpt2 ? "ln_f.weight" : "norm.weight"}, {o.width}});
  if (is_gpt2) all.push_back({"norm.bias", {"ln_f.bias"}, {o.width}});
  if (!o.tied_head.value_or(is_gpt2))
    all.push_back({"head.weight", {std::string(kHead)}, {o.vocabulary}, {o.width}});
  return all;
}

std::string_view prefix_of(GPTForm form) {
  return form == GPTForm::gpt2 ? "transformer." : "model.";
}

bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace demi::huggingface

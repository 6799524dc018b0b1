#include "demi/step/coded_state.h"

#include <torch/types.h>

#include "demi/kernels/recode.h"

namespace demi::optim {
namespace {

kernels::Coded array_of(const at::Tensor& values, const at::Tensor& scales) {
  return {.values = const_cast<void*>(values.const_data_ptr()),
          .scales = scales.defined() ? const_cast<void*>(scales.const_data_ptr()) : nullptr,
          .codec = *codec_of(values)};
}

/// The tensor on the CPU, with the same strides if they leave no gaps.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu() : tensor;
}

}  // namespace

c10::ScalarType dtype_of(kernels::Codec codec) {
  switch (codec) {
    case kernels::Codec::softsign:
      return at::kChar;
    case kernels::Codec::root:
      return at::kByte;
    default:
      return at::kBFloat16;
  }
}

bool has_order_of(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.sizes() == other.sizes() &&
         (tensor.strides() == other.strides() || (tensor.is_contiguous() && other.is_contiguous()));
}

std::string scale_name(const std::string& state) { return state + "_scale"; }

kernels::Codec codec_for(const kernels::State& state, Moments moments, const at::Tensor& work) {
  if (moments != Moments::int8) return kernels::Codec::bf16_by_chance;
  if (!work.is_contiguous()) {
    TORCH_WARN_ONCE(
        "[optim.step] the moments of weights in another memory format (channels_last), ",
        "such as one of shape ", work.sizes(), ", are kept in bf16: 8-bit groups count ",
        "neighbours of contiguous tensors alone");
    return kernels::Codec::bf16_by_chance;
  }
  return state.is_square ? kernels::Codec::root : kernels::Codec::softsign;
}

std::optional<kernels::Codec> codec_of(const at::Tensor& state) {
  for (const auto codec :
       {kernels::Codec::bf16_by_chance, kernels::Codec::softsign, kernels::Codec::root})
    if (state.scalar_type() == dtype_of(codec)) return codec;
  return std::nullopt;
}

kernels::Coded coded_array(ParamState& state, const char* name) {
  const at::Tensor& values = state[name];
  const auto codec = codec_of(values);
  if (!codec) return {};
  const at::Tensor scales = has_scales(*codec) ? state[scale_name(name)] : at::Tensor();
  return array_of(values, scales);
}

at::Tensor decoded(const at::Tensor& values, const at::Tensor& scales) {
  const auto codec = codec_of(values);
  if (!codec) return values;  // "step", too
  if (!has_scales(*codec)) return values.to(at::kFloat);
  const at::Tensor codes = on_host(values).contiguous(), groups = on_host(scales).contiguous();
  const at::Tensor made = at::empty(codes.sizes(), at::kFloat);
  kernels::decode_array(made.mutable_data_ptr<float>(), array_of(codes, groups), made.numel());
  return made.to(values.device());
}

at::Tensor decoded(const ParamState& state, const std::string& name) {
  at::Tensor values, scales;
  for (const auto& [known, tensor] : state.tensors()) {
    if (known == name) values = tensor;
    if (known == scale_name(name)) scales = tensor;
  }
  return values.defined() ? decoded(values, scales) : values;
}

std::vector<std::pair<std::string, at::Tensor>> decoded_tensors(const ParamState& state) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& [name, tensor] : state.tensors())
    if (!name.ends_with("_scale") && name != kRemainder)
      all.emplace_back(name, decoded(state, name));
  return all;
}

void keep_coded(ParamState& state, const char* name, kernels::Codec codec, const at::Tensor& values,
                const at::Tensor& work, const std::optional<kernels::RoundingKey>& key) {
  const auto like = [&](c10::ScalarType dtype) {
    return at::empty_like(work, work.options().dtype(dtype).device(at::kCPU).requires_grad(false));
  };
  const at::Tensor from = like(at::kFloat).copy_(values), codes = like(dtype_of(codec));
  const int64_t groups = kernels::scales_of(codec, work.numel());
  const at::Tensor scales = groups > 0 ? at::empty({groups}, at::kBFloat16) : at::Tensor();
  kernels::encode_array(array_of(codes, scales), from.const_data_ptr<float>(), from.numel(), key);
  const auto put = [&](const std::string& place, const at::Tensor& made) {
    at::Tensor& kept = state[place];
    const bool fits = kept.defined() && kept.scalar_type() == made.scalar_type() &&
                      has_order_of(kept, made) && kept.device() == work.device();
    if (fits)
      kept.copy_(made);
    else
      kept = made.to(work.device());
  };
  put(name, codes);
  if (scales.defined())
    put(scale_name(name), scales);
  else
    state.erase(scale_name(name));
}

}  // namespace demi::optim

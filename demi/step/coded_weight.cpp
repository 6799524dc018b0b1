#include "demi/step/coded_weight.h"

#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <string>

#include "demi/core/error.h"
#include "demi/kernels/recode.h"
#include "demi/tensor/dtype.h"

namespace demi::optim {
namespace {

[[noreturn]] void refuse_parameter(const at::Tensor& parameter, WeightMode mode, const char* what,
                                   const char* advice) {
  throw UsageError({.where = "optim.StepOptions",
                    .what = std::string("weight_mode ") + name_of(mode) + " does not know " + what,
                    .seen = c10::str(c10::toString(parameter.scalar_type()), " of shape ",
                                     parameter.sizes(), ", strides ", parameter.strides()),
                    .accepted = std::string(mode == WeightMode::split ? "bf16 and fp16" : "bf16") +
                                " parameters without gaps, and fp32 and fp64 ones",
                    .advice = advice});
}

/// An empty tensor on the CPU with the strides of `layout`.
at::Tensor made_on_host(const at::Tensor& layout, c10::ScalarType dtype) {
  return at::empty_like(layout,
                        layout.options().device(at::kCPU).dtype(dtype).requires_grad(false));
}

}  // namespace

const char* name_of(WeightMode mode) {
  constexpr const char* kNames[] = {"master", "split", "split24", "stochastic"};
  return kNames[static_cast<int>(mode)];
}

std::optional<kernels::WeightCodec> codec_for(const at::Tensor& parameter, WeightMode mode) {
  if (mode == WeightMode::master || !tensor::is_16_bit(parameter.scalar_type())) return {};
  const bool is_fp16 = parameter.scalar_type() == at::kHalf;
  if (is_fp16 && mode != WeightMode::split)
    refuse_parameter(parameter, mode, "fp16 parameters",
                     "use bf16, or WeightMode::split or master");
  if (!parameter.is_non_overlapping_and_dense())
    refuse_parameter(parameter, mode, "a parameter with gaps in its memory",
                     "make it contiguous, or use WeightMode::master");
  switch (mode) {
    case WeightMode::split24:
      return kernels::WeightCodec::split24;
    case WeightMode::stochastic:
      return kernels::WeightCodec::by_chance;
    default:
      return is_fp16 ? kernels::WeightCodec::split_fp16 : kernels::WeightCodec::split;
  }
}

std::optional<c10::ScalarType> remainder_dtype(kernels::WeightCodec codec) {
  if (codec == kernels::WeightCodec::split) return at::kShort;
  if (codec == kernels::WeightCodec::split_fp16) return at::kUInt16;
  if (codec == kernels::WeightCodec::split24) return at::kChar;
  return std::nullopt;
}

c10::ScalarType parameter_of_remainder(c10::ScalarType dtype) {
  return dtype == at::kUInt16 ? at::kHalf : at::kBFloat16;
}

std::optional<WeightMode> mode_of_remainder(c10::ScalarType dtype) {
  if (dtype == at::kShort || dtype == at::kUInt16) return WeightMode::split;
  if (dtype == at::kChar) return WeightMode::split24;
  return std::nullopt;
}

namespace {

/// SplitFp16::joined.
at::Tensor joined_fp16(const at::Tensor& parameter, const at::Tensor& remainder) {
  constexpr std::int32_t kBias = 112 << 10;  // of fp16's exponent to FP32's
  const at::Tensor bits = parameter.detach().view(at::kShort).to(at::kInt),
                   half = bits.bitwise_and(0x7FFF);
  const at::Tensor below = remainder.view(at::kShort).to(bits.device(), at::kInt);
  const at::Tensor multiple = half * 0x8000, sum = multiple + below;
  const at::Tensor even = at::where(sum >= 0x1000000, sum.bitwise_and(~1), sum);
  const at::Tensor is_one = (below >= -0x4000).logical_and(below < 0x4000).logical_and(sum >= 0);
  const at::Tensor small =
      (at::where(is_one, even, multiple).to(at::kFloat) * 0x1p-39).view(at::kInt);
  const at::Tensor whole = (half + kBias) * 0x2000;
  const at::Tensor least = (half == 0x400).to(at::kInt) * -0x1000 - 0x1000;
  const at::Tensor normal =
      at::where((below >= least).logical_and(below < 0x1000), whole + below, whole);
  const at::Tensor beyond = half.bitwise_and(0x3FF) * 0x2000 + 0x7F800000;
  const at::Tensor large = at::where(half < 0x7C00, normal, beyond);
  const at::Tensor magnitude = at::where(half < 0x400, small, large);
  constexpr auto kSign = std::numeric_limits<std::int32_t>::min();
  return at::where(bits < 0, magnitude.bitwise_or(kSign), magnitude).view(at::kFloat);
}

}  // namespace

// Integer operations of LibTorch, the same as the codecs' (a test compares all cases).
at::Tensor joined_weight(const at::Tensor& parameter, const at::Tensor& remainder) {
  const at::NoGradGuard no_grad;
  const c10::ScalarType dtype = parameter_of_remainder(remainder.scalar_type());
  if (parameter.scalar_type() != dtype || parameter.sizes() != remainder.sizes())
    throw UsageError({.where = "optim.joined_weight",
                      .what = "a remainder does not belong to its parameter",
                      .seen = c10::str(remainder.toString(), " ", remainder.sizes(), " beside ",
                                       parameter.toString(), " ", parameter.sizes()),
                      .accepted = std::string(dtype == at::kHalf ? "an fp16" : "a bf16") +
                                  " parameter of the same shape"});
  if (dtype == at::kHalf) return joined_fp16(parameter, remainder);
  const at::Tensor halves = parameter.detach().view(at::kShort).to(at::kInt);
  const at::Tensor bits = remainder.to(halves.device(), at::kInt);
  const at::Tensor rest = remainder.scalar_type() == at::kChar ? bits * 0x100 : bits;
  const at::Tensor high = halves * 0x10000, magnitude = halves.bitwise_and(0x7FFF);
  const at::Tensor is_one =
      (magnitude + (rest >= 0) <= 0x7F80).logical_and((magnitude > 0).logical_or(rest >= 0));
  return at::where(is_one, high + rest, high).view(at::kFloat);
}

at::Tensor converted_weight(const at::Tensor& parameter, const at::Tensor& remainder) {
  const at::NoGradGuard no_grad;
  const c10::ScalarType narrow = parameter_of_remainder(remainder.scalar_type());
  if (parameter.scalar_type() == narrow) return joined_weight(parameter, remainder);
  if (tensor::is_16_bit(parameter.scalar_type())) return parameter.detach().to(at::kFloat);
  const at::Tensor halves = parameter.detach().to(narrow);
  const at::Tensor same = halves.to(parameter.scalar_type()) == parameter;
  return at::where(same, joined_weight(halves, remainder).to(parameter.scalar_type()),
                   parameter.detach());
}

void part_weight(kernels::WeightCodec codec, const at::Tensor& fp32, at::Tensor parameter,
                 at::Tensor remainder, const std::optional<kernels::RoundingKey>& key) {
  const at::NoGradGuard no_grad;
  const at::Tensor from = made_on_host(parameter, at::kFloat).copy_(fp32);
  const at::Tensor halves = made_on_host(parameter, parameter.scalar_type());
  const auto dtype = remainder_dtype(codec);
  const at::Tensor rest = dtype ? made_on_host(parameter, *dtype) : at::Tensor();
  kernels::encode_array({.parameter = static_cast<std::uint16_t*>(halves.mutable_data_ptr()),
                         .rest = dtype ? rest.mutable_data_ptr() : nullptr,
                         .codec = codec},
                        from.const_data_ptr<float>(), from.numel(), key);
  parameter.copy_(halves);
  if (dtype) remainder.copy_(rest);
}

}  // namespace demi::optim

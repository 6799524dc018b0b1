#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/core/export.h"
#include "demi/kernels/codecs/codec.h"
#include "demi/step/step_options.h"

// 16-bit parameters that are trained without a master (WeightMode). The bits that a parameter lacks
// are ParamState::remainder, whose dtype names the codec: int16 is split's of bf16, uint16 that of
// fp16, int8 split24's.
namespace demi::optim {

DEMI_API const char* name_of(WeightMode mode);

/// The codec of a parameter in that mode. None: it has a master, or is fp32 or fp64. Throws
/// UsageError for a parameter that the mode does not know.
std::optional<kernels::WeightCodec> codec_for(const at::Tensor& parameter, WeightMode mode);

/// The dtype of the codec's remainder; none: the codec keeps none.
DEMI_API std::optional<c10::ScalarType> remainder_dtype(kernels::WeightCodec codec);
/// The dtype of a parameter with such a remainder: fp16 or bf16.
c10::ScalarType parameter_of_remainder(c10::ScalarType dtype);
/// The mode that keeps such a remainder; nullopt if there is none.
std::optional<WeightMode> mode_of_remainder(c10::ScalarType dtype);

/// The FP32 numbers, a copy on the parameter's device, for which the host does not wait.
DEMI_API at::Tensor joined_weight(const at::Tensor& parameter, const at::Tensor& remainder);

/// The FP32 numbers of a parameter that the program may have converted to another dtype than the
/// remainder is for (Module::to). FP32 and FP64: where nobody wrote to it, the numbers that the two
/// halves stood for, in the parameter's dtype. The other 16-bit format: the parameter's own
/// numbers.
DEMI_API at::Tensor converted_weight(const at::Tensor& parameter, const at::Tensor& remainder);

/// The reverse of joined_weight, in place; without a key rounded to nearest. `remainder`: undefined
/// where the codec keeps none.
void part_weight(kernels::WeightCodec codec, const at::Tensor& fp32, at::Tensor parameter,
                 at::Tensor remainder,
                 const std::optional<kernels::RoundingKey>& key = std::nullopt);

}  // namespace demi::optim

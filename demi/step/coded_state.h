#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/rules/state.h"
#include "demi/step/param_state.h"
#include "demi/step/step_options.h"

// The states of a parameter that lie in fewer bytes than FP32. A codec is known by the dtype: bf16;
// int8 (of either sign) and uint8 (0 or more), whose scales are the state NAME_scale, bf16, one for
// each 32 neighbours.
namespace demi::optim {

std::string scale_name(const std::string& state);

/// The codec of a state that may be coded. The groups of 8-bit codes are neighbours in memory, an
/// order that a file keeps of contiguous tensors alone: in other layouts the state is bf16.
kernels::Codec codec_for(const kernels::State& state, Moments moments, const at::Tensor& work);

/// Whether the elements of two tensors of one shape lie in memory in the same order. The stride of
/// a dimension of size 1 says nothing: a file keeps none.
bool has_order_of(const at::Tensor& tensor, const at::Tensor& other);

c10::ScalarType dtype_of(kernels::Codec codec);
/// The codec of a tensor that holds a state; none for FP32 and FP64.
std::optional<kernels::Codec> codec_of(const at::Tensor& state);

/// The state's arrays for the kernels; `values` is null if it is not coded.
kernels::Coded coded_array(ParamState& state, const char* name);

/// The state in FP32 (FP64), on its device; a copy if it was coded.
DEMI_API at::Tensor decoded(const at::Tensor& values, const at::Tensor& scales);
DEMI_API at::Tensor decoded(const ParamState& state, const std::string& name);
/// ParamState::tensors(), decoded, without the scales and the remainder, which is a part of the
/// weight.
DEMI_API std::vector<std::pair<std::string, at::Tensor>> decoded_tensors(const ParamState& state);

/// Keeps `values` (FP32) as the state, in the layout of `work`, rounded to nearest, or by chance.
void keep_coded(ParamState& state, const char* name, kernels::Codec codec, const at::Tensor& values,
                const at::Tensor& work,
                const std::optional<kernels::RoundingKey>& key = std::nullopt);

}  // namespace demi::optim

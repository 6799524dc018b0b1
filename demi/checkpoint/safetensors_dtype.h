#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace demi::checkpoint {

/// The format's name of a dtype ("BF16"), or nothing if the format does not have it.
std::optional<std::string_view> safetensors_name(c10::ScalarType dtype);

/// The order of dtypes in a file: tensors of a lower rank come first, wide dtypes before narrow
/// ones.
int safetensors_rank(c10::ScalarType dtype);

/// The dtype of that name, or nothing if LibTorch does not have it.
std::optional<c10::ScalarType> safetensors_dtype(std::string_view name);

}  // namespace demi::checkpoint

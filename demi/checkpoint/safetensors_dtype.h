#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace demi::checkpoint {

/// How the format spells a dtype, or nothing where it has no word for it.
std::optional<std::string_view> safetensors_name(c10::ScalarType dtype);

/// Tensors of a lower rank stand first in a file.
int safetensors_rank(c10::ScalarType dtype);

std::optional<c10::ScalarType> safetensors_dtype(std::string_view name);

}  // namespace demi::checkpoint

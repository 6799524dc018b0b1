#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "demi/checkpoint/input_file.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// The most bytes of a header; the reference implementation's limit.
constexpr uint64_t kLongestHeader = 100'000'000;
/// LibTorch's operators accept no more.
constexpr std::size_t kMostDimensions = 64;
/// An entry of 8 bytes in the file costs about 100 bytes of memory.
constexpr std::size_t kMostMetadata = 100'000;

/// The entries of a JSON header, sorted by place and then by name; the caller sets data_start.
/// Takes the time of a sort and less than 3 times the text's memory, because no JSON document is
/// built. Does not compare places, dtypes and shapes with each other or with the file. Throws
/// DataError for text that is not JSON, a name that occurs twice, and an entry of another form.
DEMI_API SafetensorsHeader parse_header(const Fault& fault, std::string_view text);

/// The format's name of a dtype ("BF16"), or nothing if the format does not have it.
std::optional<std::string_view> safetensors_name(c10::ScalarType dtype);

/// The order of dtypes in a file: tensors of a lower rank come first, wide dtypes before narrow
/// ones.
int safetensors_rank(c10::ScalarType dtype);

/// The dtype of that name, or nothing if LibTorch does not have it.
std::optional<c10::ScalarType> safetensors_dtype(std::string_view name);

}  // namespace demi::checkpoint

#pragma once

#include <cstddef>
#include <string_view>

#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/safetensors_fault.h"

namespace demi::checkpoint {

constexpr std::size_t kMostDimensions = 64;  // LibTorch's operators take no more
/// Each entry costs about 100 bytes of memory for as few as 8 in the file.
constexpr std::size_t kMostMetadata = 100'000;

/// The entries of a JSON header, sorted by place and then by name; data_start is left to the
/// caller. Time is that of a sort, memory less than 3 times the text: no JSON document is built.
/// Places, dtypes and shapes are not compared with each other or with the file. Throws DataError
/// for text that is not JSON, a name that stands twice, an entry of another form.
SafetensorsHeader parse_header(const Fault& fault, std::string_view text);

}  // namespace demi::checkpoint

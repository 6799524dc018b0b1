#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// The metadata entry that holds a file's content checksum: 8 lower-case hexadecimal digits.
inline constexpr std::string_view kContentChecksum = "demi.crc32c";

/// A tensor of a file, and the CRC-32C of its values as they are there.
struct TensorSum {
  std::string name, dtype;  // as the format spells it: F32, BF16, ...
  std::vector<int64_t> shape;
  uint32_t sum = 0;
};

/// The CRC-32C of a file's content, the same for any order of its header: first of each metadata
/// entry whose name begins with "demi." (but kContentChecksum), by name, a line "LENGTH NAME LENGTH
/// VALUE"; then of each tensor, by name, a line "LENGTH NAME DTYPE E,E,... SUM". Lengths are in
/// bytes, SUM has 8 hexadecimal digits.
DEMI_API uint32_t content_checksum(const Metadata& metadata, std::vector<TensorSum> tensors);

}  // namespace demi::checkpoint

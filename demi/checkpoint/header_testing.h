#pragma once

#include <cstdint>
#include <string>

namespace demi::checkpoint {

/// A safetensors header's length, as it stands in front of the header: 8 bytes, little endian.
inline std::string header_length(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

}  // namespace demi::checkpoint

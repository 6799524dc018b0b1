#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// The checksum of zip archives: polynomial 0x04C11DB7 (APPNOTE 4.4.7), another one than crc32c's.
/// `before` is the checksum of the bytes in front of these.
DEMI_API std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before = 0);
inline std::uint32_t crc32(std::string_view text) { return crc32(text.data(), text.size()); }

}  // namespace demi

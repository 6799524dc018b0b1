#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// CRC-32C: Castagnoli's polynomial 0x1EDC6F41, as in RFC 3720 (iSCSI), appendix B.4. It differs
/// for any two texts of one length that differ in one bit, in an odd number of bits or within 32
/// bits in a row. `before` is the checksum of what comes before the bytes: checksums of pieces in
/// turn give that of the whole.
DEMI_API std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);
inline std::uint32_t crc32c(std::string_view text) { return crc32c(text.data(), text.size()); }

/// The CRC-32C by tables, for processors without an instruction for it.
std::uint32_t crc32c_by_tables(const void* data, std::size_t bytes, std::uint32_t before = 0);

/// The checksum of two pieces one after the other, from theirs and the second one's length.
DEMI_API std::uint32_t crc32c_of_both(std::uint32_t first, std::uint32_t second,
                                      std::uint64_t bytes_of_second);

}  // namespace demi

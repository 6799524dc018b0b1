#pragma once

#include <cstdint>
#include <string_view>

#include "demi/core/export.h"

namespace demi::report {

/// CRC-32C, Castagnoli's polynomial 0x1EDC6F41, as in RFC 3720 (iSCSI), appendix B.4.
DEMI_API std::uint32_t crc32c(std::string_view bytes);

/// As TFRecord stores it, so that the checksum of a file that holds checksums is not degenerate:
/// rotated right by 15 bits, plus 0xa282ead8 (tensorflow/core/lib/hash/crc32c.h).
DEMI_API std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace demi::report

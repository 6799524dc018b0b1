#pragma once

#include <cstdint>
#include <optional>

#include "demi/core/export.h"
#include "demi/kernels/codecs/codec.h"

namespace demi::kernels {

/// Whole arrays to and from their codes, on the host: of devices without kernels, and of states
/// that come from a file or go to another form. Without a key rounded to nearest, not by chance.
DEMI_API void encode_array(const Coded& to, const float* from, std::int64_t length,
                           const std::optional<RoundingKey>& key = std::nullopt);
DEMI_API void encode_array(const CodedWeight& to, const float* from, std::int64_t length,
                           const std::optional<RoundingKey>& key = std::nullopt);
DEMI_API void decode_array(float* to, const CodedWeight& from, std::int64_t length);
DEMI_API void decode_array(float* to, const Coded& from, std::int64_t length);

}  // namespace demi::kernels

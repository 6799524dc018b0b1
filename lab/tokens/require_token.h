#pragma once

#include <cstddef>
#include <cstdint>

namespace demi::tokens {

/// Throws DataError for the byte at which a text is not UTF-8.
[[noreturn]] void refuse_not_utf8(std::size_t at);

/// Throws UsageError unless the token is in [0, size).
void require_token(int32_t token, int64_t size);

}  // namespace demi::tokens

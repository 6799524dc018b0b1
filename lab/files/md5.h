#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::files {

/// RFC 1321, 32 lower case hexadecimal digits. It detects a damaged download; it is no protection
/// against malice.
DEMI_API std::string md5(std::string_view bytes);

/// Throws DataError if the file cannot be read.
DEMI_API std::string md5_of_file(const std::filesystem::path& file);

}  // namespace demi::files

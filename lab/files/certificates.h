#pragma once

#include <filesystem>

#include "demi/core/export.h"

namespace demi::files {

/// The file of certificates by which a libcurl trusts servers whose own file is `built_in`:
/// SSL_CERT_FILE where it is set, as for curl's program; else "" for its own, where that is there;
/// else the first of those of Debian, Fedora, openSUSE and Alpine below `root`, since a wheel's
/// libcurl runs on systems that it was not built on; else "".
DEMI_API std::filesystem::path certificate_file(const std::filesystem::path& built_in,
                                                const std::filesystem::path& root = "/");

}  // namespace demi::files

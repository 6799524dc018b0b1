#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "demi/core/export.h"

namespace demi::files {

/// Bytes received, bytes in all (0: unknown).
using FetchProgress = std::function<void(int64_t have, int64_t total)>;

/// Fetches `url` (https, http, file) to `file`. The bytes received are kept in file.part, where a
/// later call resumes; the name `file` appears only with the right MD5. A part with a wrong sum is
/// removed. If another process fetches the same file, it waits for that one. Throws DataError: no
/// network, broken off, wrong sum (found, expected); TrainingError: disk.
DEMI_API void fetch(const std::string& url, const std::filesystem::path& file,
                    const std::string& md5, const FetchProgress& progress = {});

}  // namespace demi::files

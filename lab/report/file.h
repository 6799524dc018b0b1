#pragma once

#include <filesystem>
#include <string_view>

#include "demi/core/export.h"

namespace demi::report {

/// The file is either the old one or all of the new one, whatever happens: written beside it under
/// a temporary name, fsync, renamed over it, the folder synced. Throws TrainingError (disk full, no
/// permission) and then leaves the old file as it was and no temporary behind.
DEMI_API void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace demi::report

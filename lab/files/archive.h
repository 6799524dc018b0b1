#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "demi/core/export.h"

namespace demi::files {

/// The content of those files of a tar archive (gz, xz or bare) whose name, without folders, is in
/// `names`. Reads the archive once, to its end, so that every checksum in it is compared. Members
/// that are not there are not in the result. Throws DataError for an archive that is missing or
/// damaged, a member of more than `most_bytes`, a name that occurs twice.
DEMI_API std::map<std::string, std::string> read_members(
    const std::filesystem::path& archive, const std::set<std::string>& names,
    uint64_t most_bytes = std::numeric_limits<int64_t>::max());

/// The `names` that an archive's members have, without folders.
DEMI_API std::set<std::string> members_among(const std::filesystem::path& archive,
                                             const std::set<std::string>& names);

/// Unpacks regular files and folders into `folder`, which is made and appears only when everything
/// is in it. Throws DataError (damaged; a member that points out of the folder; `folder` exists),
/// TrainingError (disk).
DEMI_API void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder);

}  // namespace demi::files

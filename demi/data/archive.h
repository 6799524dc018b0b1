#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "demi/core/export.h"

namespace demi::data {

/// The content of those members of a tar archive (gz, xz or bare) whose file name, without folders,
/// is in `names`. Reads the archive once, to the end or to the last of them. Members that are not
/// there are not in the result. Throws DataError for an archive that is missing or damaged.
DEMI_API std::map<std::string, std::string> read_members(const std::filesystem::path& archive,
                                                         const std::set<std::string>& names);

/// The file names, without folders, of an archive's members.
DEMI_API std::set<std::string> member_names(const std::filesystem::path& archive);

/// Unpacks regular files and folders into `folder`, which is made and appears only when everything
/// is in it. Throws DataError (damaged; a member that points out of the folder; `folder` exists),
/// TrainingError (disk).
DEMI_API void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder);

}  // namespace demi::data

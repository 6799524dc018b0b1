#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::data {

/// The folder of fetched data sets and caches: $DEMI_CACHE, else $XDG_CACHE_HOME/demi, else
/// ~/.cache/demi. Throws UsageError for a relative $DEMI_CACHE; a relative $XDG_CACHE_HOME does not
/// count.
DEMI_API std::filesystem::path cache_folder();

/// $DEMI_DATA_DIR, or "".
DEMI_API std::filesystem::path data_dir_of_environment();

/// The folders in which a data set may be, strongest first: `data_dir`, or without one
/// $DEMI_DATA_DIR, alone if it is given (the user asked for it; nothing else is tried); else
/// cache_folder()/data and /usr/share/datasets. In each, every one of `subfolders` is a place, and
/// a folder that the user named is one itself.
DEMI_API std::vector<std::filesystem::path> places(const std::filesystem::path& data_dir,
                                                   std::span<const std::string> subfolders);

}  // namespace demi::data

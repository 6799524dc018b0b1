#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::data {

/// Progress of a download: the file, bytes received, bytes in all (0: unknown).
using GetProgress = std::function<void(const std::string& file, int64_t have, int64_t total)>;

/// Fetches a set from where its authors offer it, checks the MD5 and unpacks it, to the first of
/// `data_dir`, $DEMI_DATA_DIR, cache_folder()/data that is given. Returns the folder. Files that
/// are there are not fetched again; a broken download resumes. Throws UsageError, DataError,
/// TrainingError (disk).
DEMI_API std::filesystem::path get_data_set(std::string_view name,
                                            const std::filesystem::path& data_dir = {},
                                            const GetProgress& progress = {});

/// The contents of a set that was checked.
struct DataCheck {
  std::string name;              // of the set
  std::filesystem::path folder;  // where it is
  /// Numbers of examples that were read.
  int64_t train_examples = 0, test_examples = 0;
  std::vector<std::string> classes;  // names, by number
};

/// Reads a whole set, so that every check of its format is made, and compares the counts with the
/// official ones, and the MD5 of an archive that has the published one's name. Throws DataError.
DEMI_API DataCheck check_data_set(std::string_view name,
                                  const std::filesystem::path& data_dir = {});

}  // namespace demi::data

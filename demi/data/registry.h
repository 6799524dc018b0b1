#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/image_set.h"

namespace demi::data {

/// A data set that demi knows by name.
struct DataSet {
  std::string name;
  std::string title;                    // one line for people
  std::vector<std::string> subfolders;  // where it may lie below a data folder
  std::vector<std::string> marks;       // any of these files or folders tells the place apart
  std::vector<std::string> classes;
  std::vector<double> mean, std;  // of the training pictures' channels in [0, 1]; empty for texts
  std::string advice;             // how to get it
};

DEMI_API std::span<const DataSet> data_sets();

/// The set of that name. Throws UsageError with the nearest right name.
DEMI_API const DataSet& data_set(std::string_view name);

/// The folder in which a set lies (see places()). Throws DataError that says where it was looked
/// for and how to get it.
DEMI_API std::filesystem::path find_data_set(std::string_view name,
                                             const std::filesystem::path& data_dir = {});

/// Reads one split of a set of pictures. Throws UsageError, DataError.
DEMI_API ImageSet load_images(std::string_view name, Split split,
                              const std::filesystem::path& data_dir = {});

}  // namespace demi::data

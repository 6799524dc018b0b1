#pragma once

#include <filesystem>

#include "demi/core/export.h"
#include "lab/recipes/config.h"

namespace demi::recipes {

/// Where the .pt2 file of a saved model is, in Config::model: `graph` if that is named; else where
/// the config says, where config.json beside the weights says, or beside them. Throws DataError if
/// it is at none of these, and UsageError for a `graph` of a model that is no such network. Other
/// models stay as they are.
DEMI_API void find_network(Config& config, const std::filesystem::path& weights,
                           const std::filesystem::path& graph);

}  // namespace demi::recipes

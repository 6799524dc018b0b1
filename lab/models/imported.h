#pragma once

#include <string_view>

#include "demi/core/export.h"
#include "demi/imported/fusing.h"
#include "demi/imported/summary.h"
#include "lab/models/registry.h"

namespace demi::models {

/// A network that was exported from Python, as one more model of the registry.
struct ImportedFile {
  ModelInfo info;  // its name is the file's
  imported::FileSummary summary;
};

/// Whether a model's name means a file: it ends in ".pt2".
DEMI_API bool is_network_file(std::string_view name);

/// "low-precision", "always" or "never". Throws UsageError.
DEMI_API imported::Fusing parse_fusing(std::string_view name);

/// What the file holds; it is read once, and again if it has changed. Throws DataError for a file
/// that is missing, damaged or of another kind.
DEMI_API const ImportedFile& imported_file(std::string_view name);

}  // namespace demi::models

#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/image_set.h"
#include "lab/data/text_set.h"

namespace demi::data {

/// Names of the classes of the Large Movie Review set, in the order of their labels: neg 0, pos 1.
DEMI_API const std::vector<std::string>& imdb_classes();

/// The review files of one split of an aclImdb folder (Maas et al. 2011), neg then pos, each by
/// rising number; both forms of file names, 17.txt and 17_9.txt. Nothing is read yet. Throws
/// DataError: no such folder, no reviews, a name of another form.
DEMI_API std::vector<TextSource> imdb_sources(const std::filesystem::path& folder, Split split);

}  // namespace demi::data

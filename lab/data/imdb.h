#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/text_set.h"

namespace demi::data {

/// Names of the classes of the Large Movie Review set, in the order of their labels: neg 0, pos 1.
DEMI_API const std::vector<std::string>& imdb_classes();

struct ImdbReviews {
  std::vector<TextSource> train, test;
};

/// The reviews of an aclImdb folder (Maas et al. 2011), neg then pos, each by rising number; both
/// forms of file names, 17.txt and 17_9.txt. If the folder has no train and no test, an archive of
/// imdb_archives() in it is read, whole. Files of a folder are not read yet. Throws DataError: no
/// such folder, no reviews, a name of another form, a damaged archive.
DEMI_API ImdbReviews imdb_reviews(const std::filesystem::path& folder);

/// The reviews of the test split alone; those of the training split may be missing.
DEMI_API std::vector<TextSource> imdb_test_reviews(const std::filesystem::path& folder);

/// Names under which the whole set is in one file.
const std::vector<std::string>& imdb_archives();

/// The archive that is read at `folder`; "" where there is none, or the unpacked set.
std::filesystem::path imdb_archive(const std::filesystem::path& folder);

}  // namespace demi::data

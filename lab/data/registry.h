#pragma once

#include <filesystem>
#include <string_view>

#include "demi/core/export.h"
#include "lab/data/data_sets.h"
#include "lab/data/image_set.h"
#include "lab/data/text_set.h"

namespace demi::data {

/// The published set of that name. Throws UsageError with the nearest right name, also for data
/// that are made in memory or are the user's own files.
DEMI_API const DataSet& published_set(std::string_view name);

/// The folder in which a set is (see places()). Throws DataError that says where it was looked for
/// and how to get it.
DEMI_API std::filesystem::path find_data_set(std::string_view name,
                                             const std::filesystem::path& data_dir = {});

/// Reads one split of a set of pictures. Throws UsageError (also for a set of texts), DataError.
DEMI_API ImageSet load_images(std::string_view name, Split split,
                              const std::filesystem::path& data_dir = {});

/// Reads and tokenizes a set of texts; the result is kept in cache_folder()/texts and read from
/// there the next time. Throws UsageError (also for a set of pictures), DataError.
DEMI_API TextCorpus load_texts(std::string_view name, const std::filesystem::path& data_dir = {});

/// Reads and tokenizes two CSV or TSV files with label and text (csv_texts.h), without a cache.
DEMI_API TextCorpus load_text_files(const std::filesystem::path& train,
                                    const std::filesystem::path& test);

/// The test split alone, numbered by a given vocabulary. The training texts need not be there. If
/// they are, and have every word of the vocabulary, the result that load_texts keeps is used.
DEMI_API TextSet load_test_texts(std::string_view name, const std::filesystem::path& data_dir,
                                 const Vocabulary& vocabulary);

/// Reads one CSV or TSV file, whose labels are among `classes`, numbered by such a vocabulary.
DEMI_API TextSet load_test_text_file(const std::filesystem::path& test,
                                     const std::vector<std::string>& classes,
                                     const Vocabulary& vocabulary);

}  // namespace demi::data

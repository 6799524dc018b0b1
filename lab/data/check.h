#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/kind.h"

namespace demi::data {

/// Something that training would refuse, one day in the middle of an epoch.
struct Finding {
  std::string place;  // a file, or a file and a line
  /// The fault, the value seen, and the advice.
  std::string what, seen, advice;
};

/// Pictures of the same bytes, or equal texts.
struct Repeated {
  std::vector<std::string> places;  // two or more
  bool in_both_parts = false;       // training and test data share it
  bool of_several_classes = false;  // they are examples of more than one class
};

/// The contents of a folder of pictures or of files of texts, and their faults.
struct FilesCheck {
  /// Training data or test data.
  struct Part {
    std::string place;              // its folder or file
    std::vector<int64_t> of_class;  // examples, by class
    /// Examples of all classes together.
    DEMI_API int64_t examples() const;
  };

  Kind kind = Kind::pictures;        // pictures or texts
  std::vector<std::string> classes;  // those of train
  std::vector<Part> parts;           // the training data, and the test data if there are any
  std::vector<Finding> damaged;      // what training would refuse
  std::vector<Repeated> repeated;    // examples that are there more than once
  std::vector<std::string> notes;    // odd, but trained on: a class of one part alone
};

/// Files read, files in all.
using CheckProgress = std::function<void(int64_t done, int64_t all)>;

/// Finds the classes as training does and decodes every picture, on LibTorch's threads. Where
/// training ends at the first damage, this continues and lists all. `progress` is called from one
/// thread at a time. Throws UsageError if this build cannot decode a picture.
DEMI_API FilesCheck check_pictures(const std::filesystem::path& folder,
                                   const CheckProgress& progress = {});

/// Checks CSV or TSV files of texts as check_pictures() checks pictures; `test` may be empty.
DEMI_API FilesCheck check_texts(const std::filesystem::path& train,
                                const std::filesystem::path& test = {});

}  // namespace demi::data

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/image_set.h"

namespace demi::data {

enum class Cifar { ten, hundred };

/// The layout of the binary version of a CIFAR set. A record is label_bytes (the class is the last
/// of them; CIFAR-100 has the coarse one before it) and 3 x 32 x 32 pixels, red, green, blue
/// planes.
struct CifarLayout {
  std::string name;  // as `demi data get` knows it
  int64_t label_bytes;
  std::vector<std::string> train_files, test_files;
  int64_t train_records, test_records;  // in each of these files as published
  std::vector<std::string> archives;    // names under which the whole set is in one
  std::vector<std::string> pickles;     // files, folders and archives of the Python version
  std::vector<std::string> classes;
};

constexpr int64_t kCifarPixels = 3 * 32 * 32;

const CifarLayout& cifar_layout(Cifar kind);

/// The first of `names` that is in the folder, else "".
std::filesystem::path first_that_exists(const std::filesystem::path& folder,
                                        const std::vector<std::string>& names);

/// The archive that is read at `place`, a folder without files of the binary version; "" if there
/// is no archive, or if there are such files.
std::filesystem::path cifar_archive(const std::filesystem::path& place, const CifarLayout& layout);

/// CIFAR-10 or CIFAR-100 (fine labels), binary version: Krizhevsky, "Learning multiple layers of
/// features from tiny images", 2009. `place` is the folder that holds data_batch_1.bin ... or
/// train.bin, or the archive (tar.gz, tar.xz), or that archive. Throws DataError: missing, cut
/// short, labels out of range, the Python (pickle) version.
DEMI_API ImageSet read_cifar(const std::filesystem::path& place, Cifar kind, Split split);

}  // namespace demi::data

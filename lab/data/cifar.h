#pragma once

#include <filesystem>

#include "demi/core/export.h"
#include "lab/data/cifar_layout.h"
#include "lab/data/image_set.h"

namespace demi::data {

/// CIFAR-10 or CIFAR-100 (fine labels), binary version: Krizhevsky, "Learning multiple layers of
/// features from tiny images", 2009. `place` is the folder that holds data_batch_1.bin ... or
/// train.bin, or the archive (tar.gz, tar.xz), or that archive. Throws DataError: missing, cut
/// short, labels out of range, the Python (pickle) version.
DEMI_API ImageSet read_cifar(const std::filesystem::path& place, Cifar kind, Split split);

}  // namespace demi::data

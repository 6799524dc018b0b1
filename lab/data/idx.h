#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/image_set.h"

namespace demi::data {

/// Reads an IDX file of unsigned bytes, raw or gzip-compressed (recognised by its content):
/// big-endian magic 0x000008RR (RR: number of dimensions, 1 to 4), RR sizes of 4 bytes, then the
/// bytes. Format: LeCun, Cortes, Burges, "The MNIST database". Returns a uint8 tensor of those
/// sizes. Throws DataError for a file that is missing, cut short, too long or damaged.
DEMI_API at::Tensor read_idx(const std::filesystem::path& file);

/// A data set in MNIST's layout: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-... (or
/// train-images.idx3-ubyte), each raw or with .gz. Throws DataError, also where pictures and labels
/// differ in number or a label has no class.
DEMI_API ImageSet read_mnist_layout(const std::filesystem::path& folder, Split split,
                                    std::vector<std::string> classes, std::string name);

}  // namespace demi::data

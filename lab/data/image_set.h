#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace demi::data {

/// Pictures with one class each, as they are in the files.
struct ImageSet {
  at::Tensor images;                 // (N, C, H, W) uint8
  at::Tensor labels;                 // (N) int64, in [0, classes.size())
  std::vector<std::string> classes;  // their names
  std::string name;                  // "fashion-mnist train"
};

/// A part of a data set.
enum class Split { train, test };

}  // namespace demi::data

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/checkpoint/contents.h"
#include "demi/checkpoint/input_file.h"

namespace demi::checkpoint {

/// Reads a stored tensor in parts, so that a file of any size takes little memory.
class StoredValues {
 public:
  /// Elements of a part: 1,048,576. All parts but the last one have that many.
  static constexpr int64_t kPart = int64_t{1} << 20;

  /// Throws DataError if the file cannot be opened.
  explicit StoredValues(const StoredTensor& tensor);

  /// The next elements in the order of memory: (n), in the tensor's dtype, on the CPU. Undefined at
  /// the end. Throws DataError if the file is shorter than it was, or cannot be read.
  at::Tensor next();

 private:
  InputFile file_;
  c10::ScalarType dtype_;
  uint64_t offset_;
  int64_t left_;
};

/// fp64, (n), of any dtype; a complex number becomes two, its real and its imaginary part.
at::Tensor as_doubles(const at::Tensor& values);

}  // namespace demi::checkpoint

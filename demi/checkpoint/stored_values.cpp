#include "demi/checkpoint/stored_values.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace demi::checkpoint {

StoredValues::StoredValues(const StoredTensor& tensor)
    : file_(tensor.file, "checkpoint.contents", "a safetensors file"),
      dtype_(tensor.dtype),
      offset_(tensor.offset),
      left_(tensor.elements()) {}

at::Tensor StoredValues::next() {
  if (left_ == 0) return {};
  at::Tensor part = at::empty({std::min(kPart, left_)}, at::TensorOptions().dtype(dtype_));
  file_.read(part.mutable_data_ptr(), offset_, part.nbytes());
  offset_ += part.nbytes();
  left_ -= part.numel();
  return part;
}

at::Tensor as_doubles(const at::Tensor& values) {
  return (values.is_complex() ? at::view_as_real(values).flatten() : values).to(at::kDouble);
}

}  // namespace demi::checkpoint

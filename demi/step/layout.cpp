#include "demi/step/layout.h"

#include <torch/types.h>

#include <algorithm>
#include <vector>

namespace demi::optim {
namespace {

struct Dimension {
  int64_t stride, size;
};

/// The dimensions with more than one element, by stride.
std::vector<Dimension> dimensions_of(const at::Tensor& tensor) {
  std::vector<Dimension> dimensions;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1) dimensions.push_back({tensor.stride(d), tensor.size(d)});
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  return dimensions;
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) return false;
  int64_t span = 1;  // places from the first element to the last
  bool steps_over = true;
  for (const auto& [stride, size] : dimensions_of(tensor)) {
    steps_over &= stride >= span;  // past all that the dimensions before it reach
    span += stride * (size - 1);
  }
  if (steps_over) return false;
  // The remaining layouts are rare, and may be sound (2 x 3 with strides 3 and 2): count the
  // places.
  const at::Tensor places = at::arange(span).as_strided(tensor.sizes(), tensor.strides());
  return std::get<0>(at::_unique(places.flatten())).numel() < tensor.numel();
}

}  // namespace demi::optim

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "demi/checkpoint/contents.h"
#include "demi/core/export.h"

namespace demi::inspect {

/// Statistics of a tensor's values. Computed in fp64, over the finite values; a complex number
/// counts as two.
struct Statistics {
  int64_t values = 0;                    // all of them
  int64_t zeros = 0;                     // 0 and -0
  int64_t nan = 0, infinite = 0;         // infinite: Inf and -Inf
  std::optional<double> min, max, mean;  // none without a finite value
  /// Standard deviation with n - 1 in the denominator, as torch.std. None with fewer than two
  /// finite values.
  std::optional<double> std;
};

/// fp64, (n), of any dtype; a complex number becomes two, its real and its imaginary part.
at::Tensor as_doubles(const at::Tensor& values);

/// Reads the tensor's values in parts: about 20 MB of memory for any size. Throws DataError.
DEMI_API Statistics statistics(const checkpoint::StoredTensor& tensor);

}  // namespace demi::inspect

#pragma once

#include <ATen/core/Tensor.h>

namespace demi::nn {

/// Whether argmax(logits, 1) is that column: the first one of the largest, and NaN is larger than
/// all. `logits` (N, C), `column` (N) in range, `largest` (N): amax(logits, 1). (N) bool. On a CPU
/// argmax takes many times as long as amax: it looks at those rows alone that can be right.
at::Tensor is_argmax(const at::Tensor& logits, const at::Tensor& column, const at::Tensor& largest);

}  // namespace demi::nn

#pragma once

#include "demi/nn/loss_pieces.h"

namespace demi::nn {

/// Whether loss_by_classes is the faster way: 16-bit products on a CPU, of many classes and more
/// than a few rows. There the memory traffic of the weight's gradient, which loss_pieces adds to
/// once in each piece, takes longer than one more product.
DEMI_API bool is_faster_by_classes(const HeadAndTargets& of);

/// Rows whose logits are made together. The gradient of the weight is read and written once for
/// each so many.
inline constexpr std::int64_t kRowsByClasses = 512;

/// Computes what loss_pieces does, a block of classes at a time and twice: first for the sum of
/// exponentials of each row, then for the gradients. Sums are in FP32.
DEMI_API LossPieces loss_by_classes(const HeadAndTargets& of, const at::Tensor& row_scale,
                                    WantedGradients wanted, bool right);

}  // namespace demi::nn

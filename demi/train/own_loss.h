#pragma once

#include "demi/core/export.h"
#include "demi/train/loss.h"
#include "demi/train/network.h"

namespace demi::train {

/// Whether `network` computes this loss itself: it has Network::loss, and the loss is
/// Loss::cross_entropy.
DEMI_API bool computes(const Network& network, const LossFunction& loss);

/// Network::loss, times the weight of `loss`. Called in the region. Throws UsageError for a mean
/// that is not one number and for `right` of another shape than the target's.
DEMI_API OwnLoss own_loss(const Network& network, const LossFunction& loss,
                          const data::Batch& batch, double label_smoothing = 0);

}  // namespace demi::train

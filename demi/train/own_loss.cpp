#include "demi/train/own_loss.h"

#include <c10/util/StringUtil.h>

#include "demi/core/error.h"

namespace demi::train {
namespace {

void require(bool is_so, const char* what, const at::Tensor& seen, const char* accepted) {
  if (is_so) return;
  throw UsageError({.where = "train.own_loss",
                    .what = what,
                    .seen = seen.defined()
                                ? c10::str(seen.sizes(), " ", c10::toString(seen.scalar_type()))
                                : "an undefined tensor",
                    .accepted = accepted});
}

}  // namespace

bool computes(const Network& network, const LossFunction& loss) {
  return network.loss && loss.takes_label_smoothing();
}

OwnLoss own_loss(const Network& network, const LossFunction& loss, const data::Batch& batch,
                 double label_smoothing) {
  OwnLoss own = network.loss(batch, label_smoothing);
  require(own.mean.defined() && own.mean.numel() == 1 && own.mean.is_floating_point(),
          "the network's own loss is not one number", own.mean,
          "the mean over the batch's targets");
  require(!own.right.defined() || own.right.sizes() == batch.target.sizes(),
          "the network's right answers do not fit the target", own.right,
          "bool, of the target's shape");
  own.mean = at_least_fp32(own.mean).reshape({});
  if (loss.weight() != 1) own.mean = own.mean * loss.weight();
  return own;
}

}  // namespace demi::train

#pragma once

#include <cstdint>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi::distributed {

class ProcessGroup;

/// From now on the torch::nn::BatchNorm1d, 2d and 3d of the model normalise in training over the
/// batches of all ranks together (Ioffe and Szegedy 2015, algorithms 1 and 2, with sums over all
/// ranks), and every rank has the same running mean and variance. Parameters, buffers and their
/// names stay. Sums are FP32 (FP64 of FP64 inputs) on a rank and FP64 among the ranks; the output
/// has the input's dtype. Each of them is one collective in forward and one in backward: all ranks
/// run the same layers in the same order. In evaluation nothing is sent.
///
/// Replaces modules that stand in a torch::nn::Sequential; returns how many. Throws UsageError for
/// one elsewhere, and then nothing is replaced. The group outlives the model's last backward. Does
/// nothing for one rank.
DEMI_API std::int64_t synchronise_batch_norm(torch::nn::Module& model, ProcessGroup& group);

/// While one lives in this thread, forward normalises over this rank's batch alone and sends
/// nothing: for a pass that the other ranks do not make.
class DEMI_API LocalBatchNorm {
 public:
  LocalBatchNorm();
  ~LocalBatchNorm();
  LocalBatchNorm(const LocalBatchNorm&) = delete;
  LocalBatchNorm& operator=(const LocalBatchNorm&) = delete;
};

}  // namespace demi::distributed

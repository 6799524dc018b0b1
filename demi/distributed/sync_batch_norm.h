#pragma once

#include <cstdint>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi::distributed {

class ProcessGroup;

/// Synchronises the torch::nn::BatchNorm1d, 2d and 3d of the model: in training they normalise over
/// the batches of all ranks together (Ioffe and Szegedy 2015, algorithms 1 and 2, with sums over
/// all ranks), and every rank has the same running mean and variance. Parameters, buffers and their
/// names stay. Sums are FP32 (FP64 of FP64 inputs) on a rank and FP64 among the ranks; the output
/// has the input's dtype. Each of them is one collective in forward and one in backward: all ranks
/// run the same layers in the same order. In evaluation nothing is sent.
///
/// Layers are found by type, wherever they are in the model, as by Python's convert_sync_batchnorm:
/// in a Sequential or as a member. Returns how many were not over this group before. A copy
/// (clone()) is not synchronised. Throws UsageError for one without running statistics, and then
/// none is synchronised. Each rank's batch has more than one element a channel, as LibTorch's own
/// layers ask for, or none. Does nothing for one rank. No backward may outlive the group; once it
/// has ended, the layers are not synchronised.
///
/// From the first call on, aten::batch_norm of the process on CPU and CUDA looks for the layer in a
/// table (about 20 ns).
DEMI_API std::int64_t synchronise_batch_norm(torch::nn::Module& model, ProcessGroup& group);

/// Whether any part of the model is synchronised.
DEMI_API bool has_synchronised_batch_norm(const torch::nn::Module& model);

/// Makes forward in this thread, while it lives, normalise over this rank's batch alone and send
/// nothing, also if demi::recompute runs it once more in another thread. For a pass that the other
/// ranks do not make.
class DEMI_API LocalBatchNorm {
 public:
  LocalBatchNorm();
  ~LocalBatchNorm();
  LocalBatchNorm(const LocalBatchNorm&) = delete;
  LocalBatchNorm& operator=(const LocalBatchNorm&) = delete;

 private:
  bool before_;
};

}  // namespace demi::distributed

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "demi/core/export.h"

namespace demi::optim {
class Optimizer;
}

namespace demi::distributed {

class ProcessGroup;

/// Options for sending parameters after a step.
struct ShardOptions {
  /// The parameters of all ranks are sent in pieces of about this size together. Two of them are
  /// under way or being packed at a time, so a step holds twice as much on each rank.
  std::int64_t bucket_bytes = 4 << 20;
};

/// Sharded optimizer state, ZeRO stage 1 (Rajbhandari et al. 2019, arXiv 1910.02054, section 5.1):
/// each rank keeps the moments and fp32 masters of a share of the parameters, updates those in
/// step(), and sends them to the others. All ranks have the same parameters after each step, with
/// the bits that an optimizer without sharing gives.
///
///     demi::distributed::DistributedDataParallel parallel(*model, group);
///     demi::optim::AdamW optimizer(model->parameters(), 1e-3);
///     demi::distributed::ShardedOptimizerState shards(optimizer, group);
///     ...                                    // backward, clip, scaler.step, as before
///     shards.consolidate();                  // all ranks
///     if (group.rank() == 0) demi::checkpoint::save(folder, step, {.models = ..., ...});
///
/// Whole parameters are shared out, the costliest first, each to the rank that has the least to do:
/// by elements, and by products where the rule is Muon. Every optimizer of demi's can be shared,
/// LAMB too, whose trust ratio needs a tensor's norm.
///
/// Parameters on a GPU go through NCCL, on its current stream: they are sent behind the update, and
/// what is enqueued afterwards reads those of all ranks. A step waits for the GPU twice: for its
/// own update, to agree on whether the step is taken, and for the other ranks' parameters.
///
/// Every step() is a collective: all ranks call it with the same gradients, as
/// DistributedDataParallel leaves them. Every rank loads the whole state of a checkpoint
/// (checkpoint::load), and keeps its share.
class DEMI_API ShardedOptimizerState {
 public:
  /// Drops the state of the parameters that other ranks keep. Optimizer and group outlive this.
  /// Throws UsageError on every rank, and names the difference, if optimizers or options differ;
  /// for an optimizer that shares its state already, and for parameters that are not all on the CPU
  /// or all on one GPU.
  ShardedOptimizerState(optim::Optimizer& optimizer, ProcessGroup& group,
                        const ShardOptions& options = {});
  /// The optimizer's next step throws UsageError: its state is one rank's share.
  ~ShardedOptimizerState();
  ShardedOptimizerState(const ShardedOptimizerState&) = delete;
  ShardedOptimizerState& operator=(const ShardedOptimizerState&) = delete;

  /// Brings the state of all ranks to rank 0: its Optimizer::state_tensors() are those of an
  /// optimizer that shares nothing, until release(), the next step or load. A collective. Costs
  /// rank 0 the memory of the others' state: memory of the CPU, for parameters on GPUs, too.
  void consolidate();
  /// Drops what consolidate() brought.
  void release();

  /// Elements of the parameters whose state a rank keeps, by rank.
  const std::vector<std::int64_t>& elements() const;

 private:
  class Share;
  optim::Optimizer& optimizer_;
  std::shared_ptr<Share> share_;
};

}  // namespace demi::distributed

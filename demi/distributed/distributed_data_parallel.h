#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi::distributed {

class ProcessGroup;

/// Options of averaging gradients over the ranks.
struct DistributedOptions {
  /// Gradients are sent in buckets of about this size during backward.
  std::int64_t bucket_bytes = 4 << 20;
  /// The size of the first bucket, which is sent early, and about that of the last one, which is
  /// sent when backward has ended.
  std::int64_t first_bucket_bytes = 1 << 20;
  /// The dtype in which gradients travel and are added up: fp32, bf16 or fp16. None: each in its
  /// own, so the 16-bit gradients of a demi optimizer take half the bytes. FP64 always keeps its
  /// own.
  std::optional<c10::ScalarType> gradient_dtype = std::nullopt;
  /// Buffers (running means of batch normalisation) become rank 0's after each backward.
  bool broadcast_buffers = true;
  /// Initial weights and buffers that differ are an error, which names the first one that does.
  /// Otherwise rank 0 warns, and all become rank 0's. They are compared by checksums.
  bool same_weights = false;
  /// Whether a Trainer compares the weights of all ranks when a fit begins and at the end of each
  /// epoch, and ends on all ranks if they differ. Costs a CRC-32C of each parameter (0.13 ms a MB
  /// on the machine of the results; on GPUs after a copy to the CPU) and one all-reduce of 16
  /// bytes. false: for machines of different instruction sets in one job, whose norms may differ by
  /// rounding.
  bool compare_weights = true;
  /// Ranks may have different numbers of batches: join(). Costs one small all-reduce each backward.
  bool uneven_batches = false;
};

/// One bucket on its way, by this process's steady clock.
struct SentBucket {
  std::int64_t bytes = 0;  // of its gradients, of one rank
  /// When it was handed to the collective, and when its average was there.
  std::chrono::steady_clock::time_point sent, ended;
};

/// The buckets that the last backward sent, and its times.
struct Reduced {
  int buckets = 0;         // that were sent
  std::int64_t bytes = 0;  // of the buckets of one rank
  int ranks = 0;           // that had a batch: the average is over these
  /// The buckets were planned again and nothing overlapped backward: the first time, and where a
  /// gradient's dtype has changed.
  bool planned = false;
  /// The buckets in the order of sending. Those that were sent before backward_ended overlap
  /// backward.
  std::vector<SentBucket> sent;
  /// The last gradient was computed, so this rank began to wait; .grad holds the averages.
  std::chrono::steady_clock::time_point backward_ended, averaged;
};

/// Data parallel training (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data
/// Parallel Training", section 3): each rank runs the model on a batch of its own, and backward()
/// leaves the average of all ranks' gradients in .grad, bit for bit the same on every rank.
///
///     demi::distributed::ProcessGroup group;
///     Net model;
///     demi::distributed::DistributedDataParallel parallel(*model, group);
///     demi::optim::AdamW optimizer(model->parameters(), 1e-3);
///     ...
///     scaler.scale(loss(model->forward(inputs), targets)).backward();   // reduces too
///     scaler.step(optimizer);                                           // the same on all ranks
///     scaler.update();
///
/// The model, loss, optimizer and scaler are used as on one rank. Each gradient is divided by the
/// number of ranks before it is sent, so no sum overflows where no rank's gradient did. An Inf or
/// NaN on one rank is an Inf or NaN on all: every rank skips the same step, and every rank's
/// gradient norm is the same.
///
/// Every backward() that reaches a parameter of the model is a collective: all ranks run the same
/// ones in the same order. A parameter that no rank used keeps its .grad; one that some rank used
/// gets the average on all, in which the others count as 0. Sparse gradients are refused.
/// Parameters may be frozen and unfrozen (requires_grad) at any time; frozen ones are not sent.
/// optim::replace_parameter may replace one, on all ranks alike.
class DEMI_API DistributedDataParallel {
 public:
  /// Throws UsageError on every rank, and names the difference, if models or options differ. Makes
  /// all parameters and buffers those of rank 0, and warns there if they were not. Model and group
  /// outlive this; the parameters' dtype and device stay what they are.
  DistributedDataParallel(torch::nn::Module& model, ProcessGroup& group,
                          const DistributedOptions& options = {});
  /// `more`: tensors that are trained in addition to the model's parameters, such as learned
  /// weights of losses.
  DistributedDataParallel(torch::nn::Module& model, ProcessGroup& group,
                          const DistributedOptions& options, std::vector<at::Tensor> more);
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  /// Keeps backward(), while it lives, from sending: it only adds to .grad. The first backward()
  /// after it averages the sum.
  class DEMI_API NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class DistributedDataParallel;
    explicit NoSync(DistributedDataParallel& parallel);
    DistributedDataParallel& parallel_;
    bool before_;
  };
  /// See NoSync.
  [[nodiscard]] NoSync no_sync();

  /// Called by a rank that has no more batches. It takes part in the backward() of the others, with
  /// gradients of 0, until no rank has a batch left. After each, .grad holds the average, and
  /// `step` is called: it steps the optimizer, the scaler and the schedule and zeroes the
  /// gradients, as the loop does, so that all ranks stay the same. Every rank calls it after its
  /// last batch. Throws UsageError without DistributedOptions::uneven_batches.
  void join(const std::function<void()>& step);

  /// Averages the present .grad. For a backward that reached no parameter on this rank, while those
  /// of other ranks did, and after no_sync(). A collective, as a backward is.
  void reduce();
  /// The mean of a loss over all ranks, in its own dtype (16 bits: FP32) and without a graph; the
  /// same bits on each. For an optimizer that decides by its loss (LBFGS), whose closure returns it
  /// after backward. A collective. Throws UsageError for a tensor of more than one number.
  at::Tensor average(const at::Tensor& loss) const;
  /// One turn of join(), without the step. Returns false if no rank has a batch.
  bool join_once();
  /// Number of averages so far.
  std::int64_t rounds() const;

  /// The record of the last backward. Valid until the next one.
  const Reduced& last_reduced() const;

  /// A line for each parameter, with a CRC-32C of its bits: equal on all ranks whose weights are.
  std::string checksums() const;

  /// The group of the constructor.
  const ProcessGroup& group() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// The model's parameters and buffers become those of rank 0. A collective; all ranks have the same
/// names, shapes and dtypes.
DEMI_API void broadcast_weights(torch::nn::Module& model, ProcessGroup& group);

}  // namespace demi::distributed

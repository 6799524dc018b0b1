#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "demi/core/export.h"
#include "demi/distributed/bucket_plan.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"

namespace demi::distributed {

/// Averages gradients over the ranks, one round a backward:
///
///     on_gradient()...   packs a gradient into its bucket, and sends the buckets that are full
///     finish()           sends the rest, waits, and writes the averages to .grad
///
/// The plan of buckets needs the dtype of each gradient, which only backward knows. So the first
/// round sends nothing before its end: the ranks agree on dtypes and order, and plan. Later rounds
/// follow the plan. The last bucket is sent at the end and carries flags: if any rank has a
/// gradient that the plan does not fit, all ranks plan again and send that round's gradients again.
/// .grad is written only after that is known.
class DEMI_API Reducer {
 public:
  /// `buffers` are broadcast after each round.
  Reducer(std::vector<at::Tensor> parameters, std::vector<at::Tensor> buffers, ProcessGroup& group,
          DistributedOptions options);

  /// Another parameter stands in this one's place, on all ranks, between two rounds: the next round
  /// plans anew.
  void replace(std::size_t index, const at::Tensor& parameter);

  void set_synchronises(bool value) { synchronises_ = value; }
  bool synchronises() const { return synchronises_; }

  /// The parameter's .grad is complete. For the first one of a round returns what keeps the round
  /// alive: the backward holds it, calls finish() at its end, and drops it. If it drops it without
  /// finish(), it has failed.
  std::shared_ptr<void> on_gradient(std::size_t index);
  void finish();

  /// A round without a backward: the averages of what is in .grad. For a backward that reached no
  /// parameter, while the other ranks' did.
  void reduce();
  /// A round in which this rank has no gradients. False: no rank has any.
  bool shadow();
  std::int64_t rounds() const { return rounds_; }

  const Reduced& reduced() const { return reduced_; }

 private:
  using RoundFlag = Bucket::RoundFlag;

  void begin_round();
  void know_active();
  void run_plan();
  void agree_on_plan();
  void open_buckets();
  void pack(std::size_t index);
  void divide_into(const at::Tensor& target, const at::Tensor& grad) const;
  void send(std::size_t bucket);
  void note_stream(std::size_t bucket);
  void wait_for_streams(std::size_t bucket);
  void send_rest();
  void wait_for_buckets();
  void write_averages();
  void write_average(std::size_t index, const at::Tensor& average);
  void send_buffers();
  bool fits_round_flags();

  at::Tensor view_of(std::size_t index) const;
  at::Tensor gradient(std::size_t index) const;
  bool is_used(std::size_t index) const { return arrived_[index] || accumulated_[index]; }

  std::vector<at::Tensor> parameters_, buffers_;
  ProcessGroup& group_;
  DistributedOptions options_;
  bool synchronises_ = true;

  BucketPlan plan_;               // no buckets: none yet
  std::vector<at::Tensor> flat_;  // by bucket: 1-D, kept from round to round

  // The round.
  std::mutex mutex_;
  bool in_round_ = false;
  std::int64_t rounds_ = 0;  // so far
  std::weak_ptr<void> round_;
  bool has_joined_ = false;                  // this rank contributes 0
  std::vector<std::size_t> arrivals_;        // in their order
  std::vector<char> arrived_;                // by parameter, in this round
  std::vector<char> accumulated_;            // by parameter, since the last round
  std::vector<std::size_t> missing_;         // by bucket: gradients that have not come
  std::vector<ProcessGroup::Pending> sent_;  // by bucket, in their order
  // Batch normalisations of all ranks send in backward, too: a rank that leaves a parameter out
  // fills its buckets later than the others do, so they are sent when backward has ended.
  bool sends_early_ = true;
  // The streams that wrote a bucket, by bucket, the one that opened it first; none on a CPU.
  std::vector<std::vector<c10::Stream>> packed_on_;
  bool late_ = false;        // a gradient changed after it was packed
  at::Tensor active_flags_;  // int32, (world size)
  ProcessGroup::Pending active_pending_;
  int active_ = 1, first_active_ = 0;

  Reduced reduced_;
};

}  // namespace demi::distributed

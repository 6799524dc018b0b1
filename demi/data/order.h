#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <mutex>

#include "demi/core/export.h"

namespace demi::data {

/// Options for cutting a set into batches.
struct OrderOptions {
  int64_t batch_size = 64;  // examples a batch and rank, 1 or more
  bool shuffle = false;     // true: a new permutation every epoch
  uint64_t seed = 0;        // of the permutation and of augmentation
  int64_t limit = 0;        // number of examples used, evenly spaced over the set; 0: all
  bool drop_last = false;   // true: leaves out a last batch that is smaller than batch_size
  int64_t rank = 0;         // of this process, 0 to world_size - 1
  int64_t world_size = 1;   // processes, each of which gets other examples
  /// Several ranks: true leaves no example out, so that totals over the ranks are those of the set.
  /// The ranks' parts of the last batch differ by one example, and a rank without a part of it has
  /// one batch less. For evaluation; in training all ranks take equally many steps.
  bool keep_all = false;
};

/// The examples of each batch: a pure function of options, epoch and position.
///
/// With several ranks the order is cut into batches of batch_size x world_size, and each rank gets
/// its part of each. Together the parts are the batch of a single process. Examples at the end that
/// do not fill the parts of all ranks evenly are left out, so all ranks take equally many steps
/// with equally many examples; except with keep_all. May be called from several threads.
class DEMI_API Order {
 public:
  /// Returns an epoch's examples, (n) int64, in another order, before they are cut into batches.
  /// Must be a pure function.
  using Arrange = std::function<at::Tensor(const at::Tensor& examples, int64_t epoch)>;

  /// `examples`: size of the whole set. Throws UsageError for options out of range.
  Order(int64_t examples, const OrderOptions& options, Arrange arrange = {});
  ~Order();

  /// Examples of one epoch, for this rank.
  int64_t examples() const { return batch_start(batches_); }
  /// Examples of one epoch, for all ranks together.
  int64_t all_examples() const;
  /// Examples within `limit` that no rank gets in an epoch.
  int64_t left_out() const;
  /// Batches of one epoch, for this rank.
  int64_t batches() const { return batches_; }

  /// The batch's indices into the set, (n) int64 on the CPU, a view. Throws UsageError for a
  /// position outside [0, batches()).
  at::Tensor indices(int64_t epoch, int64_t position) const;

  /// The indices of all batches of an epoch, one behind the other, (examples()) int64 on the CPU, a
  /// view.
  at::Tensor epoch_indices(int64_t epoch) const;

  /// Number of this rank's examples before that batch in an epoch.
  int64_t batch_start(int64_t position) const;

  /// The place of the batch's first example among those of all ranks in an epoch.
  int64_t place(int64_t position) const;

 private:
  at::Tensor permutation(int64_t epoch) const;
  /// The permutation of the last epoch that was asked for. Under the lock.
  const at::Tensor& cached(int64_t epoch) const;
  /// The start of the batch of all ranks in an epoch, and this rank's part of that batch.
  struct Part {
    int64_t whole_start, start, count;
  };
  Part part(int64_t position) const;

  OrderOptions options_;
  Arrange arrange_;
  at::Tensor chosen_;  // (n) int64: the examples that `limit` leaves
  int64_t ordered_;    // of all ranks, before a short last batch is dropped
  int64_t used_;       // of all ranks in one epoch
  int64_t batches_;
  mutable std::mutex mutex_;  // guards the two below
  mutable int64_t cached_epoch_ = -1;
  mutable at::Tensor cached_;  // this rank's indices in that epoch
};

}  // namespace demi::data

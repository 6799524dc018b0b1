#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <mutex>

#include "demi/core/export.h"

namespace demi::data {

struct OrderOptions {
  int64_t batch_size = 64;  // examples a batch, >= 1; with several ranks: of each
  bool shuffle = false;     // a new permutation every epoch
  uint64_t seed = 0;        // of the permutation and of augmentation
  int64_t limit = 0;        // use that many examples, evenly spaced over the set; 0 takes all
  bool drop_last = false;   // leave out a last batch that is smaller than batch_size
  int64_t rank = 0;         // this process out of
  int64_t world_size = 1;   // that many, each of which sees other examples
};

/// Which examples stand in which batch: a pure function of options, epoch and position.
///
/// With several ranks the order is cut into batches of batch_size x world_size, of which each rank
/// takes its part, so the union over ranks is the batch of a single process; what is left over at
/// the end and does not fill a part for every rank evenly is left out, so that all ranks step
/// equally often with equally many examples.
class DEMI_API Order {
 public:
  /// Puts an epoch's examples, (n) int64, into another order before they are cut into batches. A
  /// pure function.
  using Arrange = std::function<at::Tensor(const at::Tensor& examples, int64_t epoch)>;

  /// `examples` of the whole set. Throws UsageError for options out of range.
  Order(int64_t examples, const OrderOptions& options, Arrange arrange = {});
  ~Order();

  int64_t examples() const { return batch_start(batches_); }
  int64_t batches() const { return batches_; }

  /// Indices into the set, (n) int64 on the CPU, a view. Throws UsageError for a position outside
  /// [0, batches()).
  at::Tensor indices(int64_t epoch, int64_t position) const;

  /// How many of this rank's examples stand before that batch in an epoch.
  int64_t batch_start(int64_t position) const;

 private:
  at::Tensor permutation(int64_t epoch) const;

  OrderOptions options_;
  Arrange arrange_;
  at::Tensor chosen_;      // (n) int64: the examples that `limit` leaves
  int64_t rank_examples_;  // of one rank in one epoch
  int64_t batches_;
  mutable std::mutex mutex_;  // guards the two below
  mutable int64_t cached_epoch_ = -1;
  mutable at::Tensor cached_;  // this rank's indices in that epoch
};

}  // namespace demi::data

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::data {

/// The examples of one step.
struct Batch {
  at::Tensor input;  // images (N, C, H, W) fp32; texts (N, T) int64; rows (N, ...)
  /// (N) int64 classes, (N, 1) fp32 for binary classes, or whatever the loss expects. May be
  /// undefined for losses that need none.
  at::Tensor target = {};
  /// (N) int64 on the CPU: valid tokens of each row. Undefined for images and rows.
  at::Tensor lengths = {};
};

/// Number of its examples: the rows of its targets, or of its inputs if there are none.
inline std::int64_t examples_of(const Batch& batch) {
  return batch.target.defined() ? batch.target.size(0) : batch.input.size(0);
}

/// A source of batches. `batch` is a pure function of the loader's seed, `epoch` and `position`, so
/// a run resumes at any step with exactly the batches of an uninterrupted run. May be called from
/// several threads.
class DEMI_API Loader {
 public:
  virtual ~Loader() = default;

  /// Examples of one epoch, for this rank.
  virtual int64_t examples() const = 0;
  /// Examples of one epoch, for all ranks together. A loader that knows of no other rank returns
  /// its own.
  virtual int64_t all_examples() const { return examples(); }
  /// Examples that no rank gets in an epoch: the ranks could not share them evenly, or a last batch
  /// would be short. With shuffling they are others in each epoch.
  virtual int64_t left_out() const { return 0; }
  /// Batches of one epoch, for this rank.
  virtual int64_t batches() const = 0;

  /// The batch at `position` in [0, batches()) of an epoch. Throws UsageError for another position.
  virtual Batch batch(int64_t epoch, int64_t position) const = 0;

  /// What the host decides of that batch if the set lies on a device, such as which examples and
  /// which windows of them: (N, ...) int64 on the device, a row for each example. It is sent there
  /// once an epoch. Undefined: the loader has no such form. Throws as batch().
  virtual at::Tensor choice(int64_t epoch, int64_t position) const;
  /// The batch of a choice, bit for bit that of batch(), by work of the device alone which is the
  /// same for each choice of that shape: it can be part of a CUDA graph. Throws UsageError if there
  /// are no choices.
  virtual Batch chosen(const at::Tensor& choice) const;
};

}  // namespace demi::data

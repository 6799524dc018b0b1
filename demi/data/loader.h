#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::data {

/// What one step trains on.
struct Batch {
  at::Tensor input;  // images (N, C, H, W) fp32; texts (N, T) int64; rows (N, ...)
  at::Tensor
      target;  // (N) int64 classes, (N, 1) fp32 for binary classes, or whatever the loss expects
  at::Tensor lengths;  // (N) int64 on the CPU: valid tokens a row; undefined for images and rows
};

/// A source of batches. `batch` is a pure function of the loader's seed, `epoch` and `position`: a
/// run can go on from any step with the very bits that an uninterrupted run would have seen. Safe
/// to call from several threads.
class DEMI_API Loader {
 public:
  virtual ~Loader() = default;

  /// Examples that one epoch shows (to this rank).
  virtual int64_t examples() const = 0;
  virtual int64_t batches() const = 0;

  /// `position` in [0, batches()). Throws UsageError outside of it.
  virtual Batch batch(int64_t epoch, int64_t position) const = 0;
};

}  // namespace demi::data

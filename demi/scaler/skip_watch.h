#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi {

/// Counts skipped steps in a row, and lets the host see the count without waiting for a device:
/// there the count is kept on the device and copied to pinned memory after each step, and seen()
/// shows the count of some steps ago. A captured copy is replayed with the rest of the step.
class DEMI_API SkipWatch {
 public:
  struct Seen {
    int64_t skips_in_a_row = 0;
    float scale = 0;  // that the next step was to use
  };

  void count(bool skipped, float scale);
  /// fp32, (), both on one device. Does not synchronise.
  void count(const at::Tensor& found_inf, const at::Tensor& scale);

  /// As far as it is known on the host.
  Seen seen() const;

 private:
  Seen host_;
  at::Tensor skips_in_a_row_;  // fp32, (), on the device
  at::Tensor mirror_;          // fp32, (2), pinned: skips in a row and scale
};

}  // namespace demi

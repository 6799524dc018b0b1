#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <mutex>

#include "demi/core/export.h"

namespace demi::data {

/// What a loader decides of an epoch's examples, on a device: sent there once an epoch, on the
/// stream that is current then, which the readers' streams wait for. Any thread.
class DEMI_API EpochOnDevice {
 public:
  /// The decisions for an epoch, (examples, ...) on the CPU. A pure function.
  using Make = std::function<at::Tensor(int64_t epoch)>;

  explicit EpochOnDevice(c10::Device device) : device_(device) {}

  /// The rows [first, first + count) of the epoch, a view.
  at::Tensor rows(int64_t epoch, int64_t first, int64_t count, const Make& make) const;

 private:
  c10::Device device_;
  mutable std::mutex mutex_;  // guards the two below
  mutable int64_t epoch_ = -1;
  mutable at::Tensor all_;
};

}  // namespace demi::data

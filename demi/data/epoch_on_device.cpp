#include "demi/data/epoch_on_device.h"

#include "demi/data/to_device.h"

namespace demi::data {

at::Tensor EpochOnDevice::rows(int64_t epoch, int64_t first, int64_t count,
                               const Make& make) const {
  const std::lock_guard lock(mutex_);
  if (!all_.defined() || epoch_ != epoch) {
    all_ = to_device({.input = make(epoch)}, device_).input;
    epoch_ = epoch;
  }
  return all_.narrow(0, first, count);
}

}  // namespace demi::data

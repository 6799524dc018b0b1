#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include <vector>

namespace demi::data {

/// uint8 pictures to (x / 255 - mean) / std in fp32, by one pass that converts and one that shifts.
class Normalise {
 public:
  /// `mean` and `std` have a value for each channel, or none: mean 0, std 1.
  Normalise(const std::vector<double>& mean, const std::vector<double>& std, int64_t channels,
            c10::Device device);

  /// (N, C, H, W) uint8 on the device.
  at::Tensor operator()(const at::Tensor& images, c10::MemoryFormat format) const;

 private:
  at::Tensor scale_;  // (1, C, 1, 1): 1 / (255 std)
  at::Tensor shift_;  // (1, C, 1, 1): -mean / std
};

/// Throws UsageError, in the name of `where`, for another number of values than `channels`, a mean
/// that is not finite, and a std that is not finite and above 0.
void check_normalisation(const char* where, const std::vector<double>& mean,
                         const std::vector<double>& std, int64_t channels);

}  // namespace demi::data

#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/doctor/formats.h"

namespace demi::doctor {

/// A change that makes training faster on a device, its gain, and how to make it.
struct Advice {
  std::string topic;  // precision, bf16_products, dimensions, batch, channels_last, tf32, memory
  double gain = 0;    // times as fast, as measured here
  std::string what;   // what was measured
  std::string how;    // what to do
};

/// Below this gain there is no advice: it is within what measurements differ by.
inline constexpr double kLeastGain = 1.05;

/// The mixed precision to train in on that device: the 16-bit format with the highest rate, of two
/// equal ones bf16, which needs no loss scaling. "" if none was measured.
DEMI_API std::string best_mixed(const std::vector<Format>& formats);

/// Advice from the measured formats: TF32 and the mixed precision over FP32.
DEMI_API std::vector<Advice> of_formats(const std::vector<Format>& formats);

/// Measures what dimensions, batch size and channels_last do to products and convolutions of that
/// dtype, in a region: a second or less.
DEMI_API std::vector<Advice> of_shapes(const std::string& dtype, c10::Device device);

/// Measures the cost of fresh memory for each large tensor on the CPU. Empty unless `allocator` is
/// glibc, which releases such memory: others keep it.
DEMI_API std::vector<Advice> of_memory(const std::string& allocator);

/// The advice with a gain of at least kLeastGain, the greatest first.
DEMI_API std::vector<Advice> in_order(std::vector<Advice> all);

}  // namespace demi::doctor

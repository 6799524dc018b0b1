#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace demi::doctor {

/// Milliseconds of the product of (m, k) and (k, n) in that dtype, in a region if it has 16 bits:
/// the least of some.
double product_ms(const std::string& dtype, int64_t m, int64_t k, int64_t n, c10::Device device);

/// Milliseconds of a convolution of 64 to 64 channels, 3 by 3, over (8, 64, 56, 56), which is one
/// of ResNet's, in that dtype: the least of some.
double convolution_ms(const std::string& dtype, bool channels_last, c10::Device device);

/// Milliseconds to fill a tensor of 64 MiB on the CPU: `fresh`: in memory that the kernel gives for
/// it and takes back, as glibc has it for a block of that size; else in memory that was used
/// before.
double fill_ms(bool fresh);

}  // namespace demi::doctor

#pragma once

#include <cstdint>

namespace demi::kernels {

/// How the elements of an array lie in memory. Arithmetic is always FP32 (sums of squares FP64).
enum class Storage : std::uint8_t { none, fp32, fp16, bf16 };

constexpr int bytes_of(Storage storage) {
  return storage == Storage::fp32 ? 4 : storage == Storage::none ? 0 : 2;
}

}  // namespace demi::kernels

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/storage.h"

namespace demi::kernels::testing {

/// The greatest relative error of rounding to a storage.
inline double step_of(Storage storage) {
  return storage == Storage::bf16 ? 0x1p-8 : storage == Storage::fp16 ? 0x1p-11 : 0x1p-23;
}

/// An array of a storage, with a mark behind its end.
class StoredArray {
 public:
  StoredArray(Storage storage, std::int64_t n)
      : storage_(storage),
        n_(n),
        bytes_(static_cast<std::size_t>(n * bytes_of(storage)) + 4, 0x5A) {}
  void set(std::int64_t i, float x) {
    if (storage_ == Storage::fp32)
      std::memcpy(bytes_.data() + 4 * i, &x, 4);
    else
      halves()[i] = storage_ == Storage::fp16 ? fp16_from_fp32(x) : bf16_from_fp32(x);
  }
  float operator[](std::int64_t i) const {
    if (storage_ == Storage::fp32) {
      float x;
      std::memcpy(&x, bytes_.data() + 4 * i, 4);
      return x;
    }
    const std::uint16_t half = reinterpret_cast<const std::uint16_t*>(bytes_.data())[i];
    return storage_ == Storage::fp16 ? fp32_from_fp16(half) : fp32_from_bf16(half);
  }
  void* data() { return bytes_.data(); }
  /// With the mark.
  std::size_t bytes() const { return bytes_.size(); }
  bool is_whole() const {
    return std::all_of(bytes_.end() - 4, bytes_.end(), [](std::uint8_t b) { return b == 0x5A; });
  }
  bool operator==(const StoredArray& other) const { return bytes_ == other.bytes_; }

 private:
  std::uint16_t* halves() { return reinterpret_cast<std::uint16_t*>(bytes_.data()); }
  Storage storage_;
  std::int64_t n_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace demi::kernels::testing

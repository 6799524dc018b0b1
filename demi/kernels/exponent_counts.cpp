#include "demi/kernels/exponent_counts.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "demi/core/number.h"

namespace demi::kernels {
namespace exponents {
namespace {

// An element falls into a slot: a byte that is found without a branch. Counting slots is one
// addition an element, in four tables, so that runs of equal slots do not wait for each other.
constexpr int kSlots = 256, kTables = 4, kBlock = 1024, kLanes = 8;

struct Tally {
  std::array<std::array<std::int64_t, kSlots>, kTables> tables{};
  std::int64_t nans = 0;
  std::array<double, kLanes> squares{};

  std::int64_t of(int slot) const {
    std::int64_t sum = 0;
    for (const auto& table : tables) sum += table[static_cast<std::size_t>(slot)];
    return sum;
  }
};

// The slot of fp32 and bf16 is the exponent's field; zeros and subnormal numbers share slot 0.
struct Fp32 {
  using Bits = std::uint32_t;
  static constexpr Bits kMagnitude = 0x7FFFFFFFu, kInfinity = 0x7F800000u;
  static constexpr int kSubnormalExponent = -149;  // of the lowest bit
  static constexpr Bits kLeastNormal = 0x00800000u;
  static std::uint8_t slot(Bits magnitude) { return static_cast<std::uint8_t>(magnitude >> 23); }
  static float value(Bits magnitude) { return std::bit_cast<float>(magnitude); }
  static constexpr int kFirstSlot = 1, kLastSlot = 254, kFirstExponent = -126;
};

struct Bf16 {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7FFFu, kInfinity = 0x7F80u;
  static constexpr int kSubnormalExponent = -133;
  static constexpr Bits kLeastNormal = 0x0080u;
  static std::uint8_t slot(Bits magnitude) { return static_cast<std::uint8_t>(magnitude >> 7); }
  static float value(Bits magnitude) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(magnitude) << 16);
  }
  static constexpr int kFirstSlot = 1, kLastSlot = 254, kFirstExponent = -126;
};

// fp16 has few exponents, and gradients in it are often subnormal, so each of those has a slot: 1
// to 10, then the normal numbers' fields 1 to 30 in 11 to 40, infinity and NaN in 41.
struct Fp16 {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7FFFu, kInfinity = 0x7C00u;
  static constexpr Bits kLeastNormal = 0;  // none is left out of the slots
  static constexpr int kSubnormalExponent = -24;
  // The exponent of a whole number is that of its float.
  static std::uint8_t slot(Bits magnitude) {
    const std::uint32_t field = magnitude >> 10;
    const auto whole = static_cast<std::int32_t>(
        std::bit_cast<std::uint32_t>(static_cast<float>(magnitude)) >> 23);
    const std::int32_t subnormal = whole > 126 ? whole - 126 : 0;
    return static_cast<std::uint8_t>(field != 0 ? static_cast<std::int32_t>(field) + 10
                                                : subnormal);
  }
  static float value(Bits magnitude) {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    const std::uint32_t normal = (static_cast<std::uint32_t>(magnitude) << 13) + 0x38000000u;
    return magnitude < 0x0400u ? subnormal : std::bit_cast<float>(normal);
  }
  static constexpr int kFirstSlot = 1, kLastSlot = 40, kFirstExponent = -24;
};

void count(ExponentCounts& to, int exponent, std::int64_t times) {
  const int kept = std::clamp(exponent, kLowestExponent, kHighestExponent);
  to.of_exponent[static_cast<std::size_t>(kept - kLowestExponent)] += times;
}

// The rare numbers of slot 0 that are not zeros.
template <class Format>
std::int64_t count_subnormals(const typename Format::Bits* bits, int n, ExponentCounts& to) {
  std::int64_t found = 0;
  for (int i = 0; i < n; ++i) {
    const std::uint32_t magnitude = bits[i] & Format::kMagnitude;
    if (magnitude == 0 || magnitude >= Format::kLeastNormal) continue;
    count(to, Format::kSubnormalExponent + std::bit_width(magnitude) - 1, 1);
    ++found;
  }
  return found;
}

template <class Format>
void count_block(const typename Format::Bits* bits, int n, Tally& tally, ExponentCounts& to) {
  using Bits = typename Format::Bits;
  std::array<std::uint8_t, kBlock> slots;
  std::uint32_t nans = 0, infinities_and_nans = 0, subnormals = 0;
  for (int i = 0; i < n; ++i) {
    const Bits magnitude = bits[i] & Format::kMagnitude;
    slots[static_cast<std::size_t>(i)] = Format::slot(magnitude);
    nans += magnitude > Format::kInfinity;
    infinities_and_nans += magnitude >= Format::kInfinity;
    if constexpr (Format::kLeastNormal != 0)
      subnormals += magnitude != 0 && magnitude < Format::kLeastNormal;
  }
  tally.nans += nans;
  int i = 0;
  for (; i + kTables <= n; i += kTables)
    for (int k = 0; k < kTables; ++k)
      ++tally.tables[static_cast<std::size_t>(k)][slots[static_cast<std::size_t>(i + k)]];
  for (; i < n; ++i) ++tally.tables[0][slots[static_cast<std::size_t>(i)]];
  if (subnormals != 0) to.zeros -= count_subnormals<Format>(bits, n, to);

  const auto square = [&](int at) {
    const Bits magnitude = bits[at] & Format::kMagnitude;
    const double x = Format::value(magnitude);
    return x * x;
  };
  if (infinities_and_nans != 0) {
    for (i = 0; i < n; ++i)
      if ((bits[i] & Format::kMagnitude) < Format::kInfinity) tally.squares[0] += square(i);
    return;
  }
  for (i = 0; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) tally.squares[static_cast<std::size_t>(k)] += square(i + k);
  for (; i < n; ++i) tally.squares[0] += square(i);
}

template <class Format>
void count_all(const void* data, std::int64_t begin, std::int64_t end, ExponentCounts& to) {
  const auto* bits = static_cast<const typename Format::Bits*>(data);
  Tally tally;
  for (std::int64_t i = begin; i < end; i += kBlock)
    count_block<Format>(bits + i, static_cast<int>(std::min<std::int64_t>(kBlock, end - i)), tally,
                        to);
  to.zeros += tally.of(0);
  for (int slot = Format::kFirstSlot; slot <= Format::kLastSlot; ++slot)
    count(to, Format::kFirstExponent + slot - Format::kFirstSlot, tally.of(slot));
  to.nans += tally.nans;
  to.infinities += tally.of(Format::kLastSlot + 1) - tally.nans;
  for (const double sum : tally.squares) to.sum_of_squares += sum;
}

}  // namespace
}  // namespace exponents

void count_exponents(Storage storage, const void* data, std::int64_t begin, std::int64_t end,
                     ExponentCounts& to) {
  switch (storage) {
    case Storage::fp32:
      return exponents::count_all<exponents::Fp32>(data, begin, end, to);
    case Storage::fp16:
      return exponents::count_all<exponents::Fp16>(data, begin, end, to);
    case Storage::bf16:
      return exponents::count_all<exponents::Bf16>(data, begin, end, to);
    case Storage::none:
      return;
  }
}

void count_exponents(const double* data, std::int64_t begin, std::int64_t end, ExponentCounts& to) {
  for (std::int64_t i = begin; i < end; ++i) {
    const auto magnitude = std::bit_cast<std::uint64_t>(data[i]) & 0x7FFFFFFFFFFFFFFFu;
    constexpr std::uint64_t kInfinity = 0x7FF0000000000000u;
    if (magnitude >= kInfinity) {
      ++(magnitude == kInfinity ? to.infinities : to.nans);
    } else if (magnitude == 0) {
      ++to.zeros;
    } else {
      exponents::count(to, static_cast<int>(magnitude >> 52) - 1023,
                       1);  // far below the first, if subnormal
      to.sum_of_squares += data[i] * data[i];
    }
  }
}

}  // namespace demi::kernels

#pragma once

#include <cstdint>

#include "demi/kernels/cpu/memory.h"
#include "demi/kernels/exponent_counts.h"

// Counts of exponents with vectors. All formats are widened to FP32, which is exact and makes
// fp16's subnormal numbers normal. The exponent fields of a block are stored as bytes, and each
// field that occurs is counted by comparing all of them with it: gradients lie in some twenty
// binades below the greatest of a block, and a table that each element adds one to waits for its
// own stores. Internal linkage.
namespace demi::kernels {
namespace {

constexpr int kExponentBlock = 1024;
constexpr int kComparedFields =
    24;  // below the greatest; the few elements under them go one by one
constexpr std::uint32_t kInfinity = 0x7F800000u, kLeastNormal = 0x00800000u;

struct ExponentTally {
  static constexpr int registers = 2 * kExponentLanes / Vector::width;  // of doubles
  std::int64_t of_field[256] = {};  // 0: zeros and subnormal numbers, 255: infinities and NaN
  std::int64_t subnormals = 0, nans = 0;
  Vector::Doubles squares[registers];
};

// The rare ones, which share their field with zeros or infinities.
template <Storage storage>
void count_rare(const void* data, std::int64_t begin, int n, ExponentTally& tally,
                ExponentCounts& to) {
  for (int i = 0; i < n; i += Vector::width) {
    const int here = n - i < Vector::width ? n - i : Vector::width;
    float values[Vector::width];
    store(values, from_bits(magnitude_of(load_elements<storage>(data, begin + i, here))));
    for (int k = 0; k < here; ++k) {
      const auto magnitude = __builtin_bit_cast(std::uint32_t, values[k]);
      if (magnitude > kInfinity) ++tally.nans;
      if (magnitude == 0 || magnitude >= kLeastNormal) continue;
      ++tally.subnormals;
      ++to.of_exponent[31 - __builtin_clz(magnitude)];  // the first is 2^-149, the lowest bit
    }
  }
}

// fields[0, n) are counted; those that fill the block after them are 0.
inline void count_fields(const std::uint8_t* fields, int n, int greatest_field,
                         ExponentTally& tally) {
  const int absent = kExponentBlock - n;
  int left = n;
  const auto take = [&](int field, int times) {
    tally.of_field[field] += times;
    left -= times;
  };
  take(0, count_bytes(fields, kExponentBlock, 0) - absent);
  int field = greatest_field;
  for (; left > 0 && field > 0 && field > greatest_field - kComparedFields; --field)
    take(field, count_bytes(fields, kExponentBlock, static_cast<std::uint8_t>(field)));
  for (int i = 0; left > 0; ++i)
    if (fields[i] != 0 && fields[i] <= field) take(fields[i], 1);
}

template <Storage storage>
void count_exponent_block(const void* data, std::int64_t begin, int n, ExponentTally& tally,
                          ExponentCounts& to) {
  constexpr int kStep = 4 * Vector::width;
  alignas(64) std::uint8_t fields[kExponentBlock] = {};
  Vector::Bits largest = no_bits(), subnormal = no_bits();
  Vector::Doubles squares[ExponentTally::registers];
  for (int k = 0; k < ExponentTally::registers; ++k) squares[k] = tally.squares[k];
  const auto step = [&](int i, auto get) {
    Vector::Bits magnitude[4];
    for (int v = 0; v < 4; ++v) {
      const Vector::Bits m = magnitude[v] = magnitude_of(get(v));
      largest = greater_bits(largest, m);
      subnormal = bits_or(subnormal, magnitudes_below(m, kLeastNormal));
      const Vector finite = from_bits(magnitudes_below(m, kInfinity));
      const int lane = 2 * v % ExponentTally::registers;
      squares[lane] = add_square(squares[lane], low_doubles(finite));
      squares[lane + 1] = add_square(squares[lane + 1], high_doubles(finite));
    }
    store_exponent_fields(fields + i, magnitude);
  };
  int i = 0;
  for (; i + kStep <= n; i += kStep)
    step(i, [&](int v) { return load_elements<storage>(data, begin + i + v * Vector::width); });
  if (i < n) {
    step(i, [&](int v) {
      const int first = i + v * Vector::width, here = n - first;
      if (here <= 0) return Vector(0.0f);
      return load_elements<storage>(data, begin + first,
                                    here < Vector::width ? here : Vector::width);
    });
  }
  for (int k = 0; k < ExponentTally::registers; ++k) tally.squares[k] = squares[k];
  const std::uint32_t greatest_magnitude = greatest(largest);
  if (greatest_magnitude > kInfinity || greatest(subnormal) != 0)
    count_rare<storage>(data, begin, n, tally, to);
  count_fields(fields, n, static_cast<int>(greatest_magnitude >> 23), tally);
}

template <Storage storage>
void count_exponents_in(const void* data, std::int64_t begin, std::int64_t end,
                        ExponentCounts& to) {
  ExponentTally tally;
  for (auto& sum : tally.squares) sum = no_doubles();
  for (std::int64_t i = begin; i < end; i += kExponentBlock) {
    const std::int64_t left = end - i;
    count_exponent_block<storage>(
        data, i, left < kExponentBlock ? static_cast<int>(left) : kExponentBlock, tally, to);
  }
  to.zeros += tally.of_field[0] - tally.subnormals;
  for (int field = 1; field < 255; ++field)
    to.of_exponent[field - 127 - kLowestExponent] += tally.of_field[field];
  to.infinities += tally.of_field[255] - tally.nans;
  to.nans += tally.nans;
  double lanes[kExponentLanes];
  for (int k = 0; k < ExponentTally::registers; ++k)
    store(lanes + k * Vector::width / 2, tally.squares[k]);
  for (const double lane : lanes) to.sum_of_squares += lane;
}

void count_exponents_of(Storage storage, const void* data, std::int64_t begin, std::int64_t end,
                        ExponentCounts& to) {
  switch (storage) {
    case Storage::fp32:
      return count_exponents_in<Storage::fp32>(data, begin, end, to);
    case Storage::fp16:
      return count_exponents_in<Storage::fp16>(data, begin, end, to);
    case Storage::bf16:
      return count_exponents_in<Storage::bf16>(data, begin, end, to);
    case Storage::none:
      return;
  }
}

}  // namespace
}  // namespace demi::kernels

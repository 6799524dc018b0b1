#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "demi/kernels/quantized.h"

namespace demi::kernels::testing {

/// The numbers of a format by its definition, and roundings by search among them.
class NarrowTable {
 public:
  explicit NarrowTable(NarrowFormat format) : format_(format) {
    for (int code = 0; code < 1 << (bits() - 1); ++code) {
      const double x = magnitude_of(code);
      if (std::isfinite(x)) finite_.push_back(x);
    }
  }

  int bits() const { return format_ == NarrowFormat::e2m1 ? 4 : 8; }
  int codes() const { return 1 << bits(); }
  double greatest() const { return finite_.back(); }
  std::uint32_t nan() const {
    return format_ == NarrowFormat::e4m3 ? 0x7F : format_ == NarrowFormat::e5m2 ? 0x7E : 0x7;
  }

  double operator[](int code) const {
    const int sign = 1 << (bits() - 1);
    return (code & sign) != 0 ? -magnitude_of(code - sign) : magnitude_of(code);
  }

  /// Ties to the even code. E2M1 has no NaN: 6.
  std::uint32_t nearest(float x) const {
    if (!is_number(x)) return special(x);
    const double magnitude = std::abs(double{x});
    const auto above = std::upper_bound(finite_.begin(), finite_.end(), magnitude);
    auto best = static_cast<std::size_t>(above - finite_.begin()) - 1;
    if (above != finite_.end()) {
      const double up = *above - magnitude, down = magnitude - finite_[best];
      if (up < down || (up == down && best % 2 != 0)) ++best;
    }
    return with_sign(best, x);
  }

  /// Up if fraction and random / 65536 have a sum of 1 or more, where the fraction counts
  /// 65,536ths.
  std::uint32_t by_chance(float x, std::uint32_t random) const {
    if (!is_number(x)) return special(x);
    const double magnitude = std::min(std::abs(double{x}), greatest());
    const auto above = std::upper_bound(finite_.begin(), finite_.end(), magnitude);
    auto code = static_cast<std::size_t>(above - finite_.begin()) - 1;
    if (above != finite_.end()) {
      const double fraction = (magnitude - finite_[code]) / (*above - finite_[code]);
      if (std::floor(fraction * 65536) + random >= 65536) ++code;
    }
    return with_sign(code, x);
  }

 private:
  // Exponent, fraction and bias of the definition: E4M3 4, 3, 7; E5M2 5, 2, 15; E2M1 2, 1, 1.
  double magnitude_of(int code) const {
    const int fraction_bits = format_ == NarrowFormat::e4m3   ? 3
                              : format_ == NarrowFormat::e5m2 ? 2
                                                              : 1;
    const int bias = format_ == NarrowFormat::e4m3 ? 7 : format_ == NarrowFormat::e5m2 ? 15 : 1;
    const int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    if (format_ == NarrowFormat::e4m3 && code == 0x7F) return std::nan("");
    if (format_ == NarrowFormat::e5m2 && exponent == 31)
      return fraction == 0 ? HUGE_VAL : std::nan("");
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
    return std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  }
  bool is_number(float x) const { return std::isfinite(x); }
  std::uint32_t special(float x) const {
    return format_ == NarrowFormat::e2m1 ? with_sign(7, x) : nan();
  }
  std::uint32_t with_sign(std::size_t code, float x) const {
    return static_cast<std::uint32_t>(code) | (std::signbit(x) ? 1u << (bits() - 1) : 0u);
  }

  NarrowFormat format_;
  std::vector<double> finite_;  // of the codes without a sign, in their order
};

inline constexpr NarrowFormat kNarrowFormats[] = {NarrowFormat::e4m3, NarrowFormat::e5m2,
                                                  NarrowFormat::e2m1};

}  // namespace demi::kernels::testing

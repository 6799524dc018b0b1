#include "demi/kernels/exponent_counts.h"

#include <algorithm>
#include <bit>

#include "demi/kernels/cpu/tables.h"
#include "demi/kernels/cpu_kernels.h"

namespace demi::kernels {

void count_exponents(Storage storage, const void* data, std::int64_t begin, std::int64_t end,
                     ExponentCounts& to) {
  const CpuKernels* kernels = cpu_kernels();
  (kernels ? kernels : reference_kernels())->count_exponents(storage, data, begin, end, to);
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
      // Far below the first, if subnormal.
      const int exponent = static_cast<int>(magnitude >> 52) - 1023;
      ++to.of_exponent[std::clamp(exponent, kLowestExponent, kHighestExponent) - kLowestExponent];
      to.sum_of_squares += data[i] * data[i];
    }
  }
}

}  // namespace demi::kernels

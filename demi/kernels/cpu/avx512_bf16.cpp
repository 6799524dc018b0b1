#include "demi/kernels/bf16_product.h"
#include "demi/kernels/cpu/tables.h"

// Compiled with this instruction set's own flags (CMakeLists.txt); where the compiler has none, a
// stub.
#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace demi::kernels {
namespace {

using std::int64_t, std::uint16_t;

// Blocks of 4 rows by 4 vectors of 16 columns: 16 sums cover the latency of an instruction (6
// cycles, one issued a cycle on Zen 4), and a step over a pair of k loads 8 times for 16 of them.
constexpr int kRows = 4, kVectors = 4;
constexpr int64_t kLanes = 16;

void pack_b(uint16_t* to, const uint16_t* from, int64_t k, int64_t n, int64_t row_stride,
            int64_t column_stride) {
  const auto element = [&](int64_t i, int64_t j) {
    return i < k && j < n ? from[i * row_stride + j * column_stride] : uint16_t{0};
  };
  for (int64_t panel = 0; panel < n; panel += kVectors * kLanes) {
    const int64_t end = std::min(panel + kVectors * kLanes, (n + kLanes - 1) / kLanes * kLanes);
    for (int64_t i = 0; i < k; i += 2) {
      for (int64_t j = panel; j < end; ++j) {
        *to++ = element(i, j);
        *to++ = element(i + 1, j);
      }
    }
  }
}

// The two neighbours at `a` in every lane; of the last k of an odd number, one and a zero.
__m512bh pair(const uint16_t* a, bool both) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, a, both ? 4 : 2);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(bits)));
}

struct Strides {
  int64_t a, c;
};

/// c (Rows, Vectors x 16; of the last vector the columns in `last`) = or += a b.
template <int Rows, int Vectors>
[[gnu::always_inline]] inline void block(const uint16_t* a, const uint16_t* b, float* c, int64_t k,
                                         Strides stride, __mmask16 last, bool add) {
  const auto mask = [&](int v) { return v + 1 == Vectors ? last : static_cast<__mmask16>(0xFFFF); };
  __m512 sums[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      sums[r][v] =
          add ? _mm512_maskz_loadu_ps(mask(v), c + r * stride.c + v * kLanes) : _mm512_setzero_ps();
  const auto step = [&](int64_t i, bool both) {
    __m512bh columns[Vectors];
    for (int v = 0; v < Vectors; ++v)
      columns[v] =
          reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + (i / 2 * Vectors + v) * 2 * kLanes));
    for (int r = 0; r < Rows; ++r) {
      const __m512bh row = pair(a + r * stride.a + i, both);
      for (int v = 0; v < Vectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], row, columns[v]);
    }
  };
  const int64_t even = k / 2 * 2;
  for (int64_t i = 0; i < even; i += 2) step(i, /*both=*/true);
  if (even < k) step(even, /*both=*/false);
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      _mm512_mask_storeu_ps(c + r * stride.c + v * kLanes, mask(v), sums[r][v]);
}

template <int Vectors>
void multiply_panel(const uint16_t* a, const uint16_t* b, float* c, int64_t rows, int64_t k,
                    Strides stride, __mmask16 last, bool add) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    block<kRows, Vectors>(a + r * stride.a, b, c + r * stride.c, k, stride, last, add);
  for (; r < rows; ++r)
    block<1, Vectors>(a + r * stride.a, b, c + r * stride.c, k, stride, last, add);
}

void multiply(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t b_rows, float* c,
              int64_t c_stride, int64_t rows, int64_t k, int64_t n, bool add) {
  constexpr decltype(&multiply_panel<1>) kByVectors[kVectors] = {
      multiply_panel<1>, multiply_panel<2>, multiply_panel<3>, multiply_panel<4>};
  for (int64_t column = 0; column < n; column += kVectors * kLanes) {
    const int64_t columns = std::min(n - column, kVectors * kLanes);
    const int64_t vectors = (columns + kLanes - 1) / kLanes;
    const auto last = static_cast<__mmask16>(0xFFFFu >> (vectors * kLanes - columns));
    kByVectors[vectors - 1](a, b, c + column, rows, k, {a_stride, c_stride}, last, add);
    b += (b_rows + 1) / 2 * vectors * 2 * kLanes;
  }
}

constexpr Bf16Product kAvx512Bf16 = {.pack = pack_b, .multiply = multiply};

}  // namespace

const Bf16Product* avx512_bf16_product() { return &kAvx512Bf16; }

}  // namespace demi::kernels
#else
namespace demi::kernels {
const Bf16Product* avx512_bf16_product() { return nullptr; }
}  // namespace demi::kernels
#endif

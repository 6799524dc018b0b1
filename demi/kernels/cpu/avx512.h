#pragma once

#include <immintrin.h>

#include <cstdint>

// Sixteen floats in one register, for formulas.h and the passes. Included through vector.h.
// The BF16 conversion instruction (vcvtneps2bf16) is not used anywhere: it flushes subnormals, and
// integer rounding is not what a memory-bound pass waits for. vcvtps2ph and vcvtph2ps are IEEE 754,
// subnormals included.
namespace demi::kernels {
namespace {

struct Vector {
  static constexpr int width = 16;
  using Doubles = __m512d;
  using Bits = __m512i;

  __m512 v;

  Vector() = default;
  explicit Vector(float x) : v(_mm512_set1_ps(x)) {}
  explicit Vector(__m512 x) : v(x) {}
};

inline Vector operator+(Vector a, Vector b) { return Vector(_mm512_add_ps(a.v, b.v)); }
inline Vector operator-(Vector a, Vector b) { return Vector(_mm512_sub_ps(a.v, b.v)); }
inline Vector operator*(Vector a, Vector b) { return Vector(_mm512_mul_ps(a.v, b.v)); }
inline Vector operator/(Vector a, Vector b) { return Vector(_mm512_div_ps(a.v, b.v)); }
inline Vector operator-(Vector a) { return Vector(_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))); }

/// a b + c, rounded once.
inline Vector multiply_add(Vector a, Vector b, Vector c) {
  return Vector(_mm512_fmadd_ps(a.v, b.v, c.v));
}
inline Vector square_root(Vector x) { return Vector(_mm512_sqrt_ps(x.v)); }
inline Vector maximum(Vector a, Vector b) {
  const __mmask16 take_b =
      _mm512_cmp_ps_mask(b.v, b.v, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ);
  return Vector(_mm512_mask_blend_ps(take_b, a.v, b.v));
}
inline Vector sign(Vector x) {
  const __m512 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1.0f);
  const __m512 up = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, zero, _CMP_GT_OQ), one);
  return Vector(
      _mm512_sub_ps(up, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, zero, _CMP_LT_OQ), one)));
}
inline Vector clamp(Vector x, Vector limit) {
  const Vector low = -limit;
  const __m512 below =
      _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GT_OQ), x.v, limit.v);
  return Vector(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, low.v, _CMP_LT_OQ), below, low.v));
}

inline Vector select_less(Vector x, Vector limit, Vector yes, Vector no) {
  return Vector(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), no.v, yes.v));
}
inline Vector select_not_above(Vector x, Vector limit, Vector yes, Vector no) {
  return Vector(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LE_OQ), no.v, yes.v));
}
inline Vector select_equal(Vector x, Vector y, Vector yes, Vector no) {
  return Vector(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ), no.v, yes.v));
}
/// a0, a2, ... and then b0, b2, ...
inline Vector even_elements(Vector a, Vector b) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  return Vector(_mm512_permutex2var_ps(a.v, even, b.v));
}

inline Vector from_whole(__m512i words) { return Vector(_mm512_cvtepi32_ps(words)); }
inline __m512i to_whole(Vector x) { return _mm512_cvtps_epi32(x.v); }
inline Vector power_of_two(Vector shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return Vector(_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3F800000))));
}

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline Vector from_bf16(__m256i bits) {
  return Vector(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
}
inline Vector from_fp16(__m256i bits) { return Vector(_mm512_cvtph_ps(bits)); }
inline __m256i to_fp16(Vector x) {
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline __m256i to_bf16(Vector x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  // The upper half of each, in one instruction; a shift and a conversion are three.
  const __m512i upper = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29, 27,
                                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, chosen));
}

inline Vector load(const float* p) { return Vector(_mm512_loadu_ps(p)); }
inline Vector load(const float* p, int n) { return Vector(_mm512_maskz_loadu_ps(first(n), p)); }
inline void store(float* p, Vector x) { _mm512_storeu_ps(p, x.v); }
inline void store(float* p, Vector x, int n) { _mm512_mask_storeu_ps(p, first(n), x.v); }
inline __m256i load_half(const std::uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256i load_half(const std::uint16_t* p, int n) {
  return _mm256_maskz_loadu_epi16(first(n), p);
}
inline void store_half(std::uint16_t* p, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
}
inline void store_half(std::uint16_t* p, __m256i x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), x);
}

/// Rows become columns.
inline void transpose(Vector (&r)[16]) {
  Vector t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i].v = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1].v = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  const auto pairs = [&t](int i, bool high) {
    const __m512d a = _mm512_castps_pd(t[i].v), b = _mm512_castps_pd(t[i + 2].v);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b));
  };
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 4; ++j) r[i + j].v = pairs(i + j / 2, j % 2 != 0);
  // Quarters of 128 bits: those of rows i and i + 4, then of i and i + 8.
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 16; j += 8) {
      t[i + j].v = _mm512_shuffle_f32x4(r[i + j].v, r[i + j + 4].v, 0x88);
      t[i + j + 4].v = _mm512_shuffle_f32x4(r[i + j].v, r[i + j + 4].v, 0xDD);
    }
  for (int i = 0; i < 8; ++i) {
    r[i].v = _mm512_shuffle_f32x4(t[i].v, t[i + 8].v, 0x88);
    r[i + 8].v = _mm512_shuffle_f32x4(t[i].v, t[i + 8].v, 0xDD);
  }
}

/// Words of 16 and 8 bits, in and out of 32.
inline __m512i load_words(const std::uint16_t* p) { return _mm512_cvtepu16_epi32(load_half(p)); }
inline __m512i load_words(const std::uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_words(std::uint16_t* p, __m512i words) {
  store_half(p, _mm512_cvtepi32_epi16(words));
}
inline void store_words(std::uint8_t* p, __m512i words) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(words));
}

inline __m512d low_doubles(Vector x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)); }
inline __m512d high_doubles(Vector x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)); }
inline __m512d no_doubles() { return _mm512_setzero_pd(); }
inline __m512d add(__m512d a, __m512d b) { return _mm512_add_pd(a, b); }
inline __m512d add_square(__m512d sum, __m512d x) { return _mm512_fmadd_pd(x, x, sum); }
inline void store(double* p, __m512d x) { _mm512_storeu_pd(p, x); }

inline __m512i no_bits() { return _mm512_setzero_si512(); }
inline __m512i greater_magnitude(__m512i bits, Vector x) {
  return _mm512_max_epu32(
      bits, _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7FFFFFFF)));
}
inline std::uint32_t greatest(__m512i bits) { return _mm512_reduce_max_epu32(bits); }

// As in avx2.h.
inline __m512i magnitude_of(Vector x) {
  return _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7FFFFFFF));
}
inline Vector from_bits(__m512i bits) { return Vector(_mm512_castsi512_ps(bits)); }
inline __m512i bits_or(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }
inline __m512i greater_bits(__m512i a, __m512i b) { return _mm512_max_epu32(a, b); }
inline __m512i magnitudes_below(__m512i magnitude, std::uint32_t limit) {
  const __m512i limits = _mm512_set1_epi32(static_cast<int>(limit));
  return _mm512_maskz_mov_epi32(_mm512_cmplt_epu32_mask(magnitude, limits), magnitude);
}
inline void store_exponent_fields(std::uint8_t* p, const __m512i (&magnitude)[4]) {
  for (int k = 0; k < 4; ++k)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * k),
                     _mm512_cvtepi32_epi8(_mm512_srli_epi32(magnitude[k], 23)));
}
inline int count_bytes(const std::uint8_t* p, int n, std::uint8_t byte) {
  const __m512i wanted = _mm512_set1_epi8(static_cast<char>(byte));
  long long sum = 0;
  for (int i = 0; i < n; i += 64)
    sum += __builtin_popcountll(_mm512_cmpeq_epi8_mask(_mm512_loadu_si512(p + i), wanted));
  return static_cast<int>(sum);
}

}  // namespace
}  // namespace demi::kernels

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

// Eight floats in one register, for formulas.h and the passes. Included through vector.h. vcvtps2ph
// and vcvtph2ps (F16C) are IEEE 754, subnormals included. bf16 is rounded with integer
// instructions.
namespace demi::kernels {
namespace {

struct Vector {
  static constexpr int width = 8;
  using Doubles = __m256d;
  using Bits = __m256i;

  __m256 v;

  Vector() = default;
  explicit Vector(float x) : v(_mm256_set1_ps(x)) {}
  explicit Vector(__m256 x) : v(x) {}
};

inline Vector operator+(Vector a, Vector b) { return Vector(_mm256_add_ps(a.v, b.v)); }
inline Vector operator-(Vector a, Vector b) { return Vector(_mm256_sub_ps(a.v, b.v)); }
inline Vector operator*(Vector a, Vector b) { return Vector(_mm256_mul_ps(a.v, b.v)); }
inline Vector operator/(Vector a, Vector b) { return Vector(_mm256_div_ps(a.v, b.v)); }
inline Vector operator-(Vector a) { return Vector(_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))); }

/// a b + c, rounded once.
inline Vector multiply_add(Vector a, Vector b, Vector c) {
  return Vector(_mm256_fmadd_ps(a.v, b.v, c.v));
}
inline Vector square_root(Vector x) { return Vector(_mm256_sqrt_ps(x.v)); }
inline Vector maximum(Vector a, Vector b) {
  const __m256 take_b =
      _mm256_or_ps(_mm256_cmp_ps(b.v, b.v, _CMP_UNORD_Q), _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ));
  return Vector(_mm256_blendv_ps(a.v, b.v, take_b));
}
inline Vector sign(Vector x) {
  const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1.0f);
  const __m256 up = _mm256_and_ps(_mm256_cmp_ps(x.v, zero, _CMP_GT_OQ), one);
  return Vector(_mm256_sub_ps(up, _mm256_and_ps(_mm256_cmp_ps(x.v, zero, _CMP_LT_OQ), one)));
}
inline Vector clamp(Vector x, Vector limit) {
  const Vector low = -limit;
  const __m256 below = _mm256_blendv_ps(x.v, limit.v, _mm256_cmp_ps(x.v, limit.v, _CMP_GT_OQ));
  return Vector(_mm256_blendv_ps(below, low.v, _mm256_cmp_ps(x.v, low.v, _CMP_LT_OQ)));
}

inline Vector select_less(Vector x, Vector limit, Vector yes, Vector no) {
  return Vector(_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ)));
}
inline Vector select_not_above(Vector x, Vector limit, Vector yes, Vector no) {
  return Vector(_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(x.v, limit.v, _CMP_LE_OQ)));
}
inline Vector select_equal(Vector x, Vector y, Vector yes, Vector no) {
  return Vector(_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(x.v, y.v, _CMP_EQ_OQ)));
}
/// a0, a2, ... and then b0, b2, ...
inline Vector even_elements(Vector a, Vector b) {
  const __m256 of_halves = _mm256_shuffle_ps(a.v, b.v, 0x88);
  return Vector(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(of_halves), 0xD8)));
}

inline Vector from_whole(__m256i words) { return Vector(_mm256_cvtepi32_ps(words)); }
inline __m256i to_whole(Vector x) { return _mm256_cvtps_epi32(x.v); }
inline Vector power_of_two(Vector shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
  return Vector(_mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3F800000))));
}

inline Vector from_bf16(__m128i bits) {
  return Vector(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
}
inline Vector from_fp16(__m128i bits) { return Vector(_mm256_cvtph_ps(bits)); }
inline __m128i to_fp16(Vector x) {
  return _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline __m128i to_bf16(Vector x) {
  const __m256i bits = _mm256_castps_si256(x.v), high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}

inline Vector load(const float* p) { return Vector(_mm256_loadu_ps(p)); }
inline Vector load(const float* p, int n) {
  float padded[8] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(float));
  return load(padded);
}
inline void store(float* p, Vector x) { _mm256_storeu_ps(p, x.v); }
inline void store(float* p, Vector x, int n) {
  float padded[8];
  store(padded, x);
  std::memcpy(p, padded, static_cast<std::size_t>(n) * sizeof(float));
}
inline __m128i load_half(const std::uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m128i load_half(const std::uint16_t* p, int n) {
  std::uint16_t padded[8] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(std::uint16_t));
  return load_half(padded);
}
inline void store_half(std::uint16_t* p, __m128i x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
}
inline void store_half(std::uint16_t* p, __m128i x, int n) {
  std::uint16_t padded[8];
  store_half(padded, x);
  std::memcpy(p, padded, static_cast<std::size_t>(n) * sizeof(std::uint16_t));
}

/// Rows become columns.
inline void transpose(Vector (&r)[8]) {
  Vector t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i].v = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1].v = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  const auto pairs = [&t](int i, bool high) {
    const __m256d a = _mm256_castps_pd(t[i].v), b = _mm256_castps_pd(t[i + 2].v);
    return _mm256_castpd_ps(high ? _mm256_unpackhi_pd(a, b) : _mm256_unpacklo_pd(a, b));
  };
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 4; ++j) r[i + j].v = pairs(i + j / 2, j % 2 != 0);
  for (int i = 0; i < 4; ++i) {
    t[i].v = _mm256_permute2f128_ps(r[i].v, r[i + 4].v, 0x20);
    t[i + 4].v = _mm256_permute2f128_ps(r[i].v, r[i + 4].v, 0x31);
  }
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

/// Words of 16 and 8 bits, in and out of 32; what is stored has no other bits.
inline __m256i load_words(const std::uint16_t* p) { return _mm256_cvtepu16_epi32(load_half(p)); }
inline __m256i load_words(const std::uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline __m128i halves_of(__m256i words) {
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline void store_words(std::uint16_t* p, __m256i words) { store_half(p, halves_of(words)); }
inline void store_words(std::uint8_t* p, __m256i words) {
  const __m128i halves = halves_of(words);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(halves, halves));
}

inline __m256d low_doubles(Vector x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x.v)); }
inline __m256d high_doubles(Vector x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1)); }
inline __m256d no_doubles() { return _mm256_setzero_pd(); }
inline __m256d add(__m256d a, __m256d b) { return _mm256_add_pd(a, b); }
inline __m256d add_square(__m256d sum, __m256d x) {
  return _mm256_add_pd(sum, _mm256_mul_pd(x, x));
}  // the product is exact
inline void store(double* p, __m256d x) { _mm256_storeu_pd(p, x); }

inline __m256i no_bits() { return _mm256_setzero_si256(); }
inline __m256i greater_magnitude(__m256i bits, Vector x) {
  return _mm256_max_epu32(
      bits, _mm256_and_si256(_mm256_castps_si256(x.v), _mm256_set1_epi32(0x7FFFFFFF)));
}
inline std::uint32_t greatest(__m256i bits) {
  __m128i half = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xB1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(half));
}

// Magnitudes: FP32's bits without the sign, which compare as numbers do.
inline __m256i magnitude_of(Vector x) {
  return _mm256_and_si256(_mm256_castps_si256(x.v), _mm256_set1_epi32(0x7FFFFFFF));
}
inline Vector from_bits(__m256i bits) { return Vector(_mm256_castsi256_ps(bits)); }
inline __m256i bits_or(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }
inline __m256i greater_bits(__m256i a, __m256i b) { return _mm256_max_epu32(a, b); }
/// Those below the limit, 0 for the others.
inline __m256i magnitudes_below(__m256i magnitude, std::uint32_t limit) {
  return _mm256_and_si256(
      magnitude, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(limit)), magnitude));
}
/// The exponent fields of 32 magnitudes as bytes, in no order that a caller may rely on.
inline void store_exponent_fields(std::uint8_t* p, const __m256i (&magnitude)[4]) {
  const __m256i words[] = {
      _mm256_packus_epi32(_mm256_srli_epi32(magnitude[0], 23), _mm256_srli_epi32(magnitude[1], 23)),
      _mm256_packus_epi32(_mm256_srli_epi32(magnitude[2], 23),
                          _mm256_srli_epi32(magnitude[3], 23))};
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_packus_epi16(words[0], words[1]));
}
/// How many of n bytes are `byte`. n: a multiple of 64, at most 8,160, so that no byte overflows.
inline int count_bytes(const std::uint8_t* p, int n, std::uint8_t byte) {
  const __m256i wanted = _mm256_set1_epi8(static_cast<char>(byte));
  __m256i even = _mm256_setzero_si256(), odd = even;
  for (int i = 0; i < n; i += 64) {
    const auto at = [&](int k) {
      return _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + k)),
                               wanted);
    };
    even = _mm256_sub_epi8(even, at(0));
    odd = _mm256_sub_epi8(odd, at(32));
  }
  const __m256i sums = _mm256_add_epi64(_mm256_sad_epu8(even, _mm256_setzero_si256()),
                                        _mm256_sad_epu8(odd, _mm256_setzero_si256()));
  const __m128i half =
      _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return static_cast<int>(_mm_extract_epi64(half, 0) + _mm_extract_epi64(half, 1));
}

}  // namespace
}  // namespace demi::kernels

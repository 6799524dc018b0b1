#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "demi/core/number.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/step_table.h"

// Eight neighbouring elements in and out of device memory, 16 bytes at a time where the array is
// aligned to 16, else one by one. The host compiles the same (for the tests); there "device memory"
// is the host's.
namespace demi::kernels::cuda {

inline constexpr int kPacket = 8;

struct Packet {
  float v[kPacket];
};

namespace {

struct alignas(16) Quad {
  std::uint32_t word[4];
};

DEMI_HOST_DEVICE Quad load_quad(const void* p) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(p));  // LDG.E.128 instead of a generic LD.E.128
  const uint4 q = *static_cast<const uint4*>(p);
  return {{q.x, q.y, q.z, q.w}};
#else
  Quad q;
  std::memcpy(&q, p, sizeof q);
  return q;
#endif
}

DEMI_HOST_DEVICE void store_quad(void* p, const Quad& q) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(p));
  *static_cast<uint4*>(p) = make_uint4(q.word[0], q.word[1], q.word[2], q.word[3]);
#else
  std::memcpy(p, &q, sizeof q);
#endif
}

DEMI_HOST_DEVICE std::uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<std::uint32_t>(x);
#endif
}

DEMI_HOST_DEVICE float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// The device's fp16 conversions are IEEE 754's, subnormals included, like number.h's; NaN payloads
// differ.
DEMI_HOST_DEVICE float widen_fp16(std::uint16_t half) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
#else
  return fp32_from_fp16(half);
#endif
}

DEMI_HOST_DEVICE std::uint16_t narrow_fp16(float x) {
#if defined(__CUDA_ARCH__)
  std::uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  return fp16_from_fp32(x);
#endif
}

DEMI_HOST_DEVICE std::uint16_t narrow_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded);
}

DEMI_HOST_DEVICE float widen(std::uint16_t half, Storage storage) {
  return storage == Storage::fp16 ? widen_fp16(half)
                                  : float_of(static_cast<std::uint32_t>(half) << 16);
}

DEMI_HOST_DEVICE std::uint16_t narrow(float x, Storage storage) {
  return storage == Storage::fp16 ? narrow_fp16(x) : narrow_bf16(x);
}

DEMI_HOST_DEVICE bool is_aligned(const void* p) {
  return (reinterpret_cast<std::uintptr_t>(p) & 15u) == 0;
}

/// Elements i ... i + 7 of an aligned array, all of which exist; i is a multiple of 8.
DEMI_HOST_DEVICE Packet load_full(const void* array, Storage storage, std::int64_t i) {
  Packet packet;
  if (storage == Storage::fp32) {
    const auto* at = static_cast<const float*>(array) + i;
    const Quad low = load_quad(at), high = load_quad(at + 4);
    for (int k = 0; k < 4; ++k) {
      packet.v[k] = float_of(low.word[k]);
      packet.v[k + 4] = float_of(high.word[k]);
    }
    return packet;
  }
  const Quad quad = load_quad(static_cast<const std::uint16_t*>(array) + i);
  for (int k = 0; k < kPacket; ++k) {
    packet.v[k] = widen(static_cast<std::uint16_t>(quad.word[k / 2] >> (16 * (k % 2))), storage);
  }
  return packet;
}

DEMI_HOST_DEVICE void store_full(void* array, Storage storage, std::int64_t i,
                                 const Packet& packet) {
  if (storage == Storage::fp32) {
    Quad low, high;
    for (int k = 0; k < 4; ++k) {
      low.word[k] = bits_of(packet.v[k]);
      high.word[k] = bits_of(packet.v[k + 4]);
    }
    auto* at = static_cast<float*>(array) + i;
    store_quad(at, low);
    store_quad(at + 4, high);
    return;
  }
  Quad quad;
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t low = narrow(packet.v[2 * k], storage),
                        high = narrow(packet.v[2 * k + 1], storage);
    quad.word[k] = low | (high << 16);
  }
  store_quad(static_cast<std::uint16_t*>(array) + i, quad);
}

DEMI_HOST_DEVICE float load_one(const void* array, Storage storage, std::int64_t i) {
  if (storage == Storage::fp32) return static_cast<const float*>(array)[i];
  return widen(static_cast<const std::uint16_t*>(array)[i], storage);
}

DEMI_HOST_DEVICE void store_one(void* array, Storage storage, std::int64_t i, float x) {
  if (storage == Storage::fp32) {
    static_cast<float*>(array)[i] = x;
  } else {
    static_cast<std::uint16_t*>(array)[i] = narrow(x, storage);
  }
}

/// Elements i ... i + 7; those from n on are 0 and not touched. `vector`: 16-byte accesses are
/// allowed (is_aligned).
DEMI_HOST_DEVICE Packet load_packet(const void* array, Storage storage, std::int64_t i,
                                    std::int64_t n, bool vector) {
  if (vector && i + kPacket <= n) return load_full(array, storage, i);
  Packet packet;
  for (int k = 0; k < kPacket; ++k)
    packet.v[k] = i + k < n ? load_one(array, storage, i + k) : 0.0f;
  return packet;
}

DEMI_HOST_DEVICE void store_packet(void* array, Storage storage, std::int64_t i, std::int64_t n,
                                   bool vector, const Packet& packet) {
  if (vector && i + kPacket <= n) return store_full(array, storage, i, packet);
  for (int k = 0; k < kPacket; ++k) {
    if (i + k < n) store_one(array, storage, i + k, packet.v[k]);
  }
}

}  // namespace
}  // namespace demi::kernels::cuda

#pragma once

#include <cstdint>

#include "demi/kernels/codecs/elements.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/codecs/weights.h"
#include "demi/kernels/cuda/packets.h"

// States of a tensor as packets, coded or not. Where a packet is stored, it becomes what is stored
// of it, since pass 3 reads that.
namespace demi::kernels::cuda {
namespace {

static_assert(kCodeGroup % kPacket == 0);

/// Codes of 8 bits.
struct Codes {
  std::uint8_t v[kPacket];
};

/// As load_packet.
DEMI_HOST_DEVICE Codes load_codes(const void* array, std::int64_t i, std::int64_t n,
                                  [[maybe_unused]] bool vector) {
  Codes codes;
  const auto* from = static_cast<const std::uint8_t*>(array) + i;
#if defined(__CUDA_ARCH__)
  if (vector && i + kPacket <= n) {
    const uint2 word = *reinterpret_cast<const uint2*>(from);
    for (int k = 0; k < 4; ++k) {
      codes.v[k] = static_cast<std::uint8_t>(word.x >> (8 * k));
      codes.v[k + 4] = static_cast<std::uint8_t>(word.y >> (8 * k));
    }
    return codes;
  }
#endif
  for (int k = 0; k < kPacket; ++k) codes.v[k] = i + k < n ? from[k] : std::uint8_t{0};
  return codes;
}

DEMI_HOST_DEVICE void store_codes(void* array, std::int64_t i, std::int64_t n,
                                  [[maybe_unused]] bool vector, const Codes& codes) {
  auto* to = static_cast<std::uint8_t*>(array) + i;
#if defined(__CUDA_ARCH__)
  if (vector && i + kPacket <= n) {
    uint2 word = make_uint2(0, 0);
    for (int k = 0; k < 4; ++k) {
      word.x |= static_cast<std::uint32_t>(codes.v[k]) << (8 * k);
      word.y |= static_cast<std::uint32_t>(codes.v[k + 4]) << (8 * k);
    }
    *reinterpret_cast<uint2*>(to) = word;
    return;
  }
#endif
  for (int k = 0; k < kPacket; ++k)
    if (i + k < n) to[k] = codes.v[k];
}

/// Eight halves as they are.
struct HalfPacket {
  std::uint16_t v[kPacket];
};

DEMI_HOST_DEVICE HalfPacket load_halves(const std::uint16_t* from, std::int64_t i, std::int64_t n,
                                        bool vector) {
  HalfPacket packet;
  if (vector && i + kPacket <= n) {
    const Quad quad = load_quad(from + i);
    for (int k = 0; k < kPacket; ++k)
      packet.v[k] = static_cast<std::uint16_t>(quad.word[k / 2] >> (16 * (k % 2)));
    return packet;
  }
  for (int k = 0; k < kPacket; ++k) packet.v[k] = i + k < n ? from[i + k] : std::uint16_t{0};
  return packet;
}

DEMI_HOST_DEVICE void store_halves(std::uint16_t* to, std::int64_t i, std::int64_t n, bool vector,
                                   const HalfPacket& packet) {
  if (vector && i + kPacket <= n) {
    Quad quad;
    for (int k = 0; k < 4; ++k)
      quad.word[k] = packet.v[2 * k] | static_cast<std::uint32_t>(packet.v[2 * k + 1]) << 16;
    return store_quad(to + i, quad);
  }
  for (int k = 0; k < kPacket; ++k)
    if (i + k < n) to[i + k] = packet.v[k];
}

/// What a coded parameter lacks.
DEMI_HOST_DEVICE HalfPacket load_rest(const CodedWeight& weight, std::int64_t i, std::int64_t n,
                                      bool vector) {
  HalfPacket rest{};
  const int bytes = rest_bytes_of(weight.codec);
  if (bytes == 2) return load_halves(static_cast<const std::uint16_t*>(weight.rest), i, n, vector);
  if (bytes == 0) return rest;
  const Codes codes = load_codes(weight.rest, i, n, vector);
  for (int k = 0; k < kPacket; ++k) rest.v[k] = codes.v[k];
  return rest;
}

DEMI_HOST_DEVICE void store_rest(const CodedWeight& weight, std::int64_t i, std::int64_t n,
                                 bool vector, const HalfPacket& rest) {
  const int bytes = rest_bytes_of(weight.codec);
  if (bytes == 2) return store_halves(static_cast<std::uint16_t*>(weight.rest), i, n, vector, rest);
  if (bytes == 0) return;
  Codes codes;
  for (int k = 0; k < kPacket; ++k) codes.v[k] = static_cast<std::uint8_t>(rest.v[k]);
  store_codes(weight.rest, i, n, vector, codes);
}

DEMI_HOST_DEVICE Packet load_parameter(const TensorEntry& tensor, std::int64_t i, bool vector) {
  const CodedWeight& coded = tensor.coded_parameter;
  const std::int64_t n = tensor.length;
  if (!coded.parameter) return load_packet(tensor.parameter, Storage::fp32, i, n, vector);
  const HalfPacket halves = load_halves(coded.parameter, i, n, vector),
                   rest = load_rest(coded, i, n, vector);
  Packet packet;
  for (int k = 0; k < kPacket; ++k) packet.v[k] = joined(coded.codec, {halves.v[k], rest.v[k]});
  return packet;
}

/// random_half of a packet's elements. A packet begins at a multiple of 8.
struct PacketHalves {
  RandomStream stream;
  std::uint32_t counter;
  int shift;

  DEMI_HOST_DEVICE PacketHalves(RandomStream of, std::int64_t i)
      : stream(of),
        counter(static_cast<std::uint32_t>(i / kCodeGroup * kWords + i % kWords)),
        shift(i % kCodeGroup < kWords ? 0 : 16) {}
  DEMI_HOST_DEVICE std::uint32_t operator[](int k) const {
    return random_word(stream, counter + static_cast<std::uint32_t>(k)) >> shift & 0xFFFFu;
  }
};

DEMI_HOST_DEVICE void store_coded(const TensorEntry& tensor, RandomStream stream, std::int64_t i,
                                  bool vector, const Packet& packet) {
  const CodedWeight& weight = tensor.coded_parameter;
  const PacketHalves random(stream, i);
  HalfPacket halves, rest;
  for (int k = 0; k < kPacket; ++k) {
    const Parted parted = parted_of(weight.codec, packet.v[k],
                                    weight.codec == WeightCodec::by_chance ? random[k] : 0);
    halves.v[k] = parted.parameter;
    rest.v[k] = parted.rest;
  }
  store_halves(weight.parameter, i, tensor.length, vector, halves);
  store_rest(weight, i, tensor.length, vector, rest);
}

/// Where the state lies.
DEMI_HOST_DEVICE const void* place_of(const TensorEntry& tensor, int m) {
  const void* coded = tensor.coded_moment[m].values;
  return coded ? coded : tensor.moment[m];
}

DEMI_HOST_DEVICE bool is_grouped(const TensorEntry& tensor, int m) {
  return tensor.coded_moment[m].values && has_scales(tensor.coded_moment[m].codec);
}

DEMI_HOST_DEVICE Packet load_state(const TensorEntry& tensor, int m, std::int64_t i, bool vector) {
  const Coded& array = tensor.coded_moment[m];
  if (!is_grouped(tensor, m))
    return load_packet(place_of(tensor, m), array.values ? Storage::bf16 : Storage::fp32, i,
                       tensor.length, vector);
  Packet packet;
  const Codes codes = load_codes(array.values, i, tensor.length, vector);
  const std::uint16_t scale = scale_at(array, i);
  for (int k = 0; k < kPacket; ++k) packet.v[k] = decoded(array.codec, codes.v[k], scale);
  return packet;
}

DEMI_HOST_DEVICE void store_grouped(const Coded& array, RandomStream stream, std::int64_t i,
                                    std::int64_t n, bool vector, std::uint16_t scale,
                                    Packet& packet) {
  const PacketHalves random(stream, i);
  Codes codes;
  for (int k = 0; k < kPacket; ++k) {
    codes.v[k] = code_of(array.codec, packet.v[k], scale, random[k]);
    packet.v[k] = decoded(array.codec, codes.v[k], scale);
  }
  store_codes(array.values, i, n, vector, codes);
}

/// `scale`: the new one of the packet's group; its place in memory is not written yet, since other
/// threads read the old one from there.
DEMI_HOST_DEVICE void store_state(const TensorEntry& tensor, RandomStream stream, int m,
                                  std::int64_t i, bool vector, std::uint16_t scale,
                                  Packet& packet) {
  const Coded& array = tensor.coded_moment[m];
  if (!array.values)
    return store_packet(tensor.moment[m], Storage::fp32, i, tensor.length, vector, packet);
  if (has_scales(array.codec))
    return store_grouped(array, stream, i, tensor.length, vector, scale, packet);
  const PacketHalves random(stream, i);
  for (int k = 0; k < kPacket; ++k)
    packet.v[k] = float_of(bits_from_bf16(bf16_by_chance(bits_of(packet.v[k]), random[k])));
  store_packet(array.values, Storage::bf16, i, tensor.length, vector, packet);
}

}  // namespace
}  // namespace demi::kernels::cuda

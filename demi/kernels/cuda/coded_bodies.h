#pragma once

#include <cstdint>

#include "demi/kernels/cuda/bodies.h"
#include "demi/kernels/cuda/coded_packets.h"

// The bodies of passes 2 and 3 for tables with coded arrays: those of bodies.h decode nothing and
// have no register for it.
namespace demi::kernels::cuda {
namespace {

/// Weights and states of which some are coded.
struct CodedArrays {
  /// Streams of the random bits of the tensor's roundings.
  struct Streams {
    RandomStream state[3], parameter;
    Streams() = default;
    DEMI_HOST_DEVICE Streams(const StepTable& table, const TensorEntry& tensor) {
      DEMI_UNROLLED
      for (int m = 0; m < 3; ++m)
        if (tensor.coded_moment[m].values) state[m] = stream_of(rounding_key(table, tensor, m));
      if (tensor.coded_parameter.parameter)
        parameter = stream_of(rounding_key(table, tensor, kWeightArray));
    }
  };
  static DEMI_HOST_DEVICE Packet load(const TensorEntry& tensor, int m, std::int64_t i,
                                      bool vector) {
    return load_state(tensor, m, i, vector);
  }
  static DEMI_HOST_DEVICE Packet load_parameter(const TensorEntry& tensor, std::int64_t i,
                                                bool vector) {
    return cuda::load_parameter(tensor, i, vector);
  }
  /// No array is grouped.
  static DEMI_HOST_DEVICE void store(const TensorEntry& tensor, const Streams& streams, int m,
                                     std::int64_t i, bool vector, Packet& packet) {
    store_state(tensor, streams.state[m], m, i, vector, 0, packet);
  }
  /// A coded parameter has no copies besides.
  static DEMI_HOST_DEVICE void store_parameter(const TensorEntry& tensor, const Streams& streams,
                                               std::int64_t i, bool vector,
                                               const Packet& parameter) {
    if (tensor.coded_parameter.parameter)
      store_coded(tensor, streams.parameter, i, vector, parameter);
    else
      PlainArrays::store_parameter(tensor, {}, i, vector, parameter);
  }
  template <UpdateRule rule>
  static DEMI_HOST_DEVICE bool all_aligned(const TensorEntry& tensor, std::uint32_t arrays) {
    bool aligned = is_aligned(tensor.parameter) && is_aligned(tensor.coded_parameter.parameter) &&
                   is_aligned(tensor.coded_parameter.rest) && is_aligned(tensor.gradient) &&
                   is_aligned(tensor.copy[0]) && is_aligned(tensor.copy[1]);
    for (int m = 0; m < kArrays<rule>; ++m)
      if (is_kept<rule>(arrays, m)) aligned = aligned && is_aligned(place_of(tensor, m));
    return aligned;
  }
};

/// A thread's packet of a row, before and after the update.
template <UpdateRule rule>
struct Opened {
  static constexpr int kMost = kArrays<rule>;
  static constexpr bool trust = RuleOf<rule>::kTrust;
  Packet parameter;
  Packet moment[kMost + 1];

  Opened() = default;
  DEMI_HOST_DEVICE Opened(const TensorEntry& tensor, const Coefficients& c,
                          const DirectionArray& directions, Factors factors, std::int64_t i,
                          bool vector) {
    Packet gradient{};
    if (reads_gradient<rule>(c.flags))
      gradient = load_packet(tensor.gradient, tensor.gradient_storage, i, tensor.length, vector);
    parameter = load_parameter(tensor, i, vector);
    DEMI_UNROLLED
    for (int m = 0; m < kMost; ++m)
      if (is_kept<rule>(c.arrays, m)) moment[m] = load_state(tensor, m, i, vector);
    Packet direction{};
    directions.load<rule>(i, tensor.length, direction);
    for (int k = 0; k < kPacket; ++k) {
      Elements<float> e = element(k);
      e.gradient = true_gradient(gradient.v[k], factors.inverse_scale, factors.clip, c);
      e.direction = direction.v[k];
      kernels::update<rule>(e, c);
      DEMI_UNROLLED
      for (int m = 0; m < kMost; ++m) moment[m].v[k] = e.moment[m];
      direction.v[k] = e.direction;
      if constexpr (kMovesParameter<rule>) parameter.v[k] = e.parameter;
    }
    directions.store<rule>(i, tensor.length, direction);
  }

  DEMI_HOST_DEVICE Elements<float> element(int k) const {
    return elements<kMost>(parameter, moment, k);
  }

  /// magnitude_bits of the elements that the tensor has.
  DEMI_HOST_DEVICE std::uint32_t greatest(const TensorEntry& tensor, int m, std::int64_t i) const {
    std::uint32_t all = 0;
    for (int k = 0; k < kPacket && i + k < tensor.length; ++k) {
      const std::uint32_t bits = magnitude_bits(tensor.coded_moment[m].codec, moment[m].v[k]);
      all = bits > all ? bits : all;
    }
    return all;
  }
};

/// Two phases a row: the update and what the threads of a group of elements have to agree on, then
/// what is stored. New scales are written a phase later, when all of a group have read the old one.
template <UpdateRule rule>
struct UpdateCoded {
  using Plain = Update<rule>;
  static constexpr int kMost = kArrays<rule>;
  static constexpr bool trust = Plain::trust;
  struct Shared {
    typename Plain::Shared plain;
    std::uint32_t greatest[kMost][kThreads];  // of each thread's packet
    std::uint16_t scales[kMost][kThreads];    // new, of the row that was closed last
  };
  struct Carry {
    Opened<rule> opened;
    CodedArrays::Streams streams;
  };
  static constexpr int kOwn = 2 * kRows + 1;
  static constexpr int phases = kOwn + Plain::phases - 1;

  static DEMI_HOST_DEVICE bool ends(int p, const Shared& shared) {
    return p >= kOwn && Plain::ends(p - kOwn + 1, shared.plain);
  }

  static DEMI_HOST_DEVICE void agree(const TensorEntry& tensor, const Coefficients& c,
                                     const Opened<rule>* opened, std::int64_t i, int t,
                                     Shared& shared) {
    DEMI_UNROLLED
    for (int m = 0; m < kMost; ++m)
      shared.greatest[m][t] = opened && is_kept<rule>(c.arrays, m) && is_grouped(tensor, m)
                                  ? opened->greatest(tensor, m, i)
                                  : 0;
  }

  /// The new scale of the group to which the thread's packet belongs.
  static DEMI_HOST_DEVICE std::uint16_t new_scale(const TensorEntry& tensor, int m, int t,
                                                  const Shared& shared) {
    constexpr int kPackets = kCodeGroup / kPacket;
    std::uint32_t all = 0;
    for (int first = t / kPackets * kPackets, k = 0; k < kPackets; ++k)
      all = shared.greatest[m][first + k] > all ? shared.greatest[m][first + k] : all;
    return scale_for(tensor.coded_moment[m].codec, all);
  }

  /// Writes the new scales: each thread whose packet begins a group writes that group's.
  static DEMI_HOST_DEVICE void write_scales(const TensorEntry& tensor, std::uint32_t arrays,
                                            std::int64_t i, int t, const Shared& shared) {
    if (i % kCodeGroup != 0) return;
    DEMI_UNROLLED
    for (int m = 0; m < kMost; ++m)
      if (is_kept<rule>(arrays, m) && is_grouped(tensor, m))
        scale_at(tensor.coded_moment[m], i) = shared.scales[m][t];
  }

  /// Adds to the sums of the trust ratio, with the states as they are stored, which pass 3 reads.
  static DEMI_HOST_DEVICE void add_trust(const Opened<rule>& opened, const Coefficients& c,
                                         std::int64_t left, int t, Shared& shared) {
    for (int k = 0; k < kPacket && k < left; ++k) {
      const Elements<float> e = opened.element(k);
      const double x = e.parameter, u = RuleOf<rule>::direction(e, c);
      shared.plain.parameter.squares[k][t] += x * x;
      shared.plain.update.squares[k][t] += u * u;
    }
  }

  static DEMI_HOST_DEVICE void close(const TensorEntry& tensor, const Coefficients& c,
                                     std::int64_t i, int t, Shared& shared, Carry& carry) {
    Opened<rule>& opened = carry.opened;
    const bool vector = CodedArrays::all_aligned<rule>(tensor, c.arrays);
    DEMI_UNROLLED
    for (int m = 0; m < kMost; ++m) {
      if (!is_kept<rule>(c.arrays, m)) continue;
      const bool grouped = is_grouped(tensor, m);
      if (grouped) shared.scales[m][t] = new_scale(tensor, m, t, shared);
      store_state(tensor, carry.streams.state[m], m, i, vector, grouped ? shared.scales[m][t] : 0,
                  opened.moment[m]);
    }
    if constexpr (trust)
      add_trust(opened, c, tensor.length - i, t, shared);
    else if constexpr (kMovesParameter<rule>)
      CodedArrays::store_parameter(tensor, carry.streams, i, vector, opened.parameter);
  }

  static DEMI_HOST_DEVICE void open(const StepTable& table, const TensorEntry& tensor,
                                    std::int32_t number, const Coefficients& c, std::int64_t i,
                                    int t, Shared& shared, Carry& carry) {
    if (i >= tensor.length) return agree(tensor, c, nullptr, i, t, shared);
    const Factors factors{tensor.unscaled ? 1.0f : table.state->inverse_scale,
                          table.state->clip_factor};
    DirectionArray directions;
    if constexpr (RuleOf<rule>::kDirection != Direction::none)
      directions = DirectionArray(table, number);
    carry.opened = Opened<rule>(tensor, c, directions, factors, i,
                                CodedArrays::all_aligned<rule>(tensor, c.arrays));
    agree(tensor, c, &carry.opened, i, t, shared);
  }

  static DEMI_HOST_DEVICE void own_phase(int p, const StepTable& table, std::int64_t b, int t,
                                         Shared& shared, Carry& carry) {
    if constexpr (trust) {
      constexpr double kNone[kPacket] = {};
      if (p == 0) shared.plain.parameter.put(t, kNone);
      if (p == 0) shared.plain.update.put(t, kNone);
    }
    const Block block = table.blocks[b];
    const TensorEntry& tensor = table.tensors[block.tensor];
    if (!tensor.gradient) return;
    if (p == 0) carry.streams = CodedArrays::Streams(table, tensor);
    const Coefficients& c = table.coefficients[block.tensor];
    const std::int64_t start = block.index * kBlock;
    if (p % 2 == 0 && p > 0) {
      const std::int64_t i = start + packet_at(t, p / 2 - 1);
      if (i < tensor.length) write_scales(tensor, c.arrays, i, t, shared);
    }
    if (p >= 2 * kRows) return;
    const std::int64_t i = start + packet_at(t, p / 2);
    if (p % 2 == 0)
      open(table, tensor, block.tensor, c, i, t, shared, carry);
    else if (i < tensor.length)
      close(tensor, c, i, t, shared, carry);
  }

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t b, int t,
                                     Shared& shared, Carry& carry) {
    if (p >= kOwn) return Plain::phase(p - kOwn + 1, table, b, t, shared.plain);
    if (table.state->skipped == 0.0f) own_phase(p, table, b, t, shared, carry);
  }
};

/// Where no array is grouped.
template <UpdateRule rule>
using UpdateEach = Update<rule, CodedArrays>;

template <UpdateRule rule>
using ApplyTrustCoded = ApplyTrust<rule, CodedArrays>;

}  // namespace
}  // namespace demi::kernels::cuda

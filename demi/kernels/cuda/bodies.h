#pragma once

#include <cstdint>
#include <type_traits>

#include "demi/kernels/cuda/packets.h"
#include "demi/kernels/decision.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/lanes.h"

// The CUDA kernels as bodies: phases that one thread of one thread block runs, with a barrier
// between them and nothing but Shared carried over. plugin.cu runs them on the device; emulation.h
// runs the same source on the host, thread after thread, for the tests.
//
// 256 threads work on one Block of 16,384 elements: warp w on chunk w of lanes.h, in row r its
// thread t on elements 8t ... 8t + 7, which is one 16-byte load per thread of a 16-bit array, 512
// contiguous bytes per warp.
namespace demi::kernels::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kRows = kChunk / kRow;

namespace {

/// Where thread t's packet of row r starts within its block.
DEMI_HOST_DEVICE int packet_at(int t, int r) {
  return (t / 32) * kChunk + r * kRow + (t % 32) * kPacket;
}

/// Sum of squares over a block in the order of lanes.h, in the phases that follow the one that
/// fills `squares`.
struct SquareSum {
  double squares[kPacket][kThreads];  // thread t's element k, summed over rows
  double lanes[kThreads];             // (chunk, lane)

  DEMI_HOST_DEVICE void put(int t, const double (&sums)[kPacket]) {
    for (int k = 0; k < kPacket; ++k) squares[k][t] = sums[k];
  }
  /// Phase 0: over the groups of a chunk. 1: over chunks. 2 ... 6: halving. Then lanes[0] is the
  /// sum.
  static constexpr int phases = 7;
  DEMI_HOST_DEVICE void phase(int p, int t) {
    if (p == 0) {
      const int warp = t / 32, lane = t % 32;
      double sum = 0;
      for (int g = 0; g < kRow / kLanes; ++g)
        sum += squares[lane % 8][warp * 32 + g * 4 + lane / 8];
      lanes[t] = sum;
    } else if (p == 1) {
      if (t >= kLanes) return;
      double sum = 0;
      for (int chunk = 0; chunk < 8; ++chunk) sum += lanes[chunk * kLanes + t];
      lanes[t] = sum;
    } else {
      const int half = kLanes >> (p - 1);
      if (t < half) lanes[t] += lanes[t + half];
    }
  }
};

DEMI_HOST_DEVICE void add_squares(double (&sums)[kPacket], const Packet& packet) {
  for (int k = 0; k < kPacket; ++k) {
    const double x = packet.v[k];
    sums[k] += x * x;
  }
}

/// Pass 1.
struct Measure {
  struct Shared {
    SquareSum sum;
    std::uint32_t greatest[kThreads];
  };
  static constexpr int phases = 1 + SquareSum::phases + 1;

  static DEMI_HOST_DEVICE void read(const StepTable& table, const Block& block, int t,
                                    Shared& shared) {
    const TensorEntry& tensor = table.tensors[block.tensor];
    const void* gradient = tensor.gradient;
    const Storage storage = tensor.gradient_storage;
    const std::int64_t start = block.index * kBlock, n = gradient ? tensor.length : 0;
    const bool vector = is_aligned(gradient);
    double sums[kPacket] = {};
    std::uint32_t greatest = 0;
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t i = start + packet_at(t, r);
      if (i >= n) break;
      const Packet packet = load_packet(gradient, storage, i, n, vector);
      add_squares(sums, packet);
      for (int k = 0; k < kPacket; ++k) {
        const std::uint32_t bits = bits_of(packet.v[k]) & 0x7FFFFFFFu;
        greatest = bits > greatest ? bits : greatest;
      }
    }
    shared.sum.put(t, sums);
    shared.greatest[t] = greatest;
  }

  static DEMI_HOST_DEVICE void keep_greater(Shared& shared, int t, int other) {
    if (shared.greatest[other] > shared.greatest[t]) shared.greatest[t] = shared.greatest[other];
  }

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t b, int t,
                                     Shared& shared) {
    if (p == 0) {
      read(table, table.blocks[b], t, shared);
    } else if (p < phases - 1) {
      shared.sum.phase(p - 1, t);
      const int half = kThreads >> p;  // 128 ... 2; the last one below
      if (t < half) keep_greater(shared, t, t + half);
    } else if (t == 0) {
      keep_greater(shared, 0, 1);
      table.partials[b] = {shared.sum.lanes[0], shared.greatest[0], 0};
    }
  }
};

/// Pass 2 of a rule.
template <Rule rule>
struct Update {
  struct Empty {};
  struct Sums {
    SquareSum parameter, update;
  };
  static constexpr bool lamb = rule == Rule::lamb;
  using Shared = std::conditional_t<lamb, Sums, Empty>;
  static constexpr int phases = lamb ? 1 + SquareSum::phases + 1 : 1;

  /// Arrays of one tensor, and whether 16-byte accesses may be used on all of them.
  static DEMI_HOST_DEVICE bool all_aligned(const TensorEntry& tensor, int moments) {
    bool aligned = is_aligned(tensor.parameter) && is_aligned(tensor.gradient) &&
                   is_aligned(tensor.copy[0]) && is_aligned(tensor.copy[1]);
    for (int m = 0; m < moments; ++m) aligned = aligned && is_aligned(tensor.moment[m]);
    return aligned;
  }

  static DEMI_HOST_DEVICE void store_parameter(const TensorEntry& tensor, std::int64_t i,
                                               bool vector, const Packet& parameter) {
    store_packet(tensor.parameter, Storage::fp32, i, tensor.length, vector, parameter);
    for (int k = 0; k < 2; ++k) {
      if (tensor.copy[k])
        store_packet(tensor.copy[k], tensor.copy_storage[k], i, tensor.length, vector, parameter);
    }
  }

  static DEMI_HOST_DEVICE void one_packet(const TensorEntry& tensor, const Coefficients& c,
                                          const StepState& state, std::int64_t i, bool vector,
                                          double (&squares)[2][kPacket]) {
    constexpr int kMost = rule == Rule::ema                         ? 0
                          : rule == Rule::sgd || rule == Rule::lion ? 1
                          : lamb                                    ? 2
                                                                    : 3;
    const int moments = moment_count(rule, c.flags);
    const std::int64_t n = tensor.length;
    Packet gradient = load_packet(tensor.gradient, tensor.gradient_storage, i, n, vector);
    Packet parameter = load_packet(tensor.parameter, Storage::fp32, i, n, vector);
    Packet moment[kMost + 1];
    for (int m = 0; m < kMost; ++m) {
      if (m < moments) moment[m] = load_packet(tensor.moment[m], Storage::fp32, i, n, vector);
    }
    for (int k = 0; k < kPacket; ++k) {
      Elements<float> e{};
      e.parameter = parameter.v[k];
      e.gradient = true_gradient(gradient.v[k], state.inverse_scale, state.clip_factor, c);
      for (int m = 0; m < kMost; ++m) e.moment[m] = moment[m].v[k];
      kernels::update<rule>(e, c);
      for (int m = 0; m < kMost; ++m) moment[m].v[k] = e.moment[m];
      if constexpr (lamb) {
        const double x = e.parameter, u = i + k < n ? lamb_update(e, c) : 0.0f;
        squares[0][k] += x * x;
        squares[1][k] += u * u;
      } else {
        parameter.v[k] = e.parameter;
      }
    }
    for (int m = 0; m < kMost; ++m) {
      if (m < moments) store_packet(tensor.moment[m], Storage::fp32, i, n, vector, moment[m]);
    }
    if constexpr (!lamb) store_parameter(tensor, i, vector, parameter);
  }

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t b, int t,
                                     Shared& shared) {
    if (table.state->skipped != 0.0f) return;
    if (p == 0) {
      const Block block = table.blocks[b];
      const TensorEntry tensor = table.tensors[block.tensor];
      const Coefficients c = table.coefficients[block.tensor];
      const StepState state = *table.state;
      const std::int64_t start = block.index * kBlock, n = tensor.gradient ? tensor.length : 0;
      const bool vector = all_aligned(tensor, moment_count(rule, c.flags));
      double squares[2][kPacket] = {};
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t i = start + packet_at(t, r);
        if (i < n) one_packet(tensor, c, state, i, vector, squares);
      }
      if constexpr (lamb) {
        shared.parameter.put(t, squares[0]);
        shared.update.put(t, squares[1]);
      }
      return;
    }
    if constexpr (lamb) {
      if (p < phases - 1) {
        shared.parameter.phase(p - 1, t);
        shared.update.phase(p - 1, t);
      } else if (t == 0) {
        table.trust[b] = {shared.parameter.lanes[0], shared.update.lanes[0]};
      }
    }
  }
};

/// 256 partial sums folded by halving: phases 0 ... 7.
struct Fold {
  double lanes[kThreads];
  static constexpr int phases = 8;
  DEMI_HOST_DEVICE void phase(int p, int t) {
    const int half = kThreads >> (p + 1);
    if (t < half) lanes[t] += lanes[t + half];
  }
};

/// Between the passes: one thread block for the whole table. Adds up (reduces) and / or takes the
/// decision (decides).
template <bool reduces, bool decides>
struct Finish {
  struct Shared {
    Fold sum;
    std::uint32_t greatest[kThreads];
    std::int64_t taken;  // before this step
  };
  static constexpr int phases = 1 + Fold::phases + 2;

  static DEMI_HOST_DEVICE void gather(const StepTable& table, int t, Shared& shared) {
    double sum = 0;
    std::uint32_t greatest = 0;
    for (std::int64_t b = t; b < table.block_count; b += kThreads) {
      sum += table.partials[b].sum_of_squares;
      greatest =
          table.partials[b].greatest_bits > greatest ? table.partials[b].greatest_bits : greatest;
    }
    shared.sum.lanes[t] = sum;
    shared.greatest[t] = greatest;
  }

  static DEMI_HOST_DEVICE void count_steps(const StepTable& table, int t, std::int64_t taken) {
    for (std::int32_t k = t; k < table.tensor_count; k += kThreads) {
      const TensorEntry& tensor = table.tensors[k];
      if (!tensor.gradient) continue;
      const Group& group = table.groups[tensor.group];
      const std::int64_t step = *tensor.step += 1;
      table.coefficients[k] = tensor_coefficients(
          group_coefficients(table.rule, group, learning_rate(group, taken), step), tensor);
    }
  }

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t, int t,
                                     Shared& shared) {
    if (p == 0) {
      if constexpr (reduces) gather(table, t, shared);
    } else if (p <= Fold::phases) {
      if constexpr (!reduces) return;
      shared.sum.phase(p - 1, t);
      const int half = kThreads >> p;
      if (t < half && shared.greatest[t + half] > shared.greatest[t])
        shared.greatest[t] = shared.greatest[t + half];
    } else if (p == phases - 2) {
      if (t != 0) return;
      if constexpr (reduces)
        record_sums(table.inputs, shared.sum.lanes[0], shared.greatest[0], *table.state);
      shared.taken = table.state->taken;
      if constexpr (decides) record_decision(table.inputs, *table.state);
    } else if constexpr (decides) {
      if (table.state->skipped == 0.0f) count_steps(table, t, shared.taken);
    }
  }
};

/// Pass 3 of LAMB. Each thread block adds up its tensor's partial sums itself (a few loads a
/// thread, from cache), which saves a launch.
struct ApplyTrust {
  struct Shared {
    Fold parameter, update;
    float rate;
  };
  static constexpr int phases = 1 + Fold::phases + 2;

  static DEMI_HOST_DEVICE void gather(const StepTable& table, std::int32_t tensor, int t,
                                      Shared& shared) {
    double parameter = 0, update = 0;
    for (std::int64_t b = table.first_block[tensor] + t; b < table.first_block[tensor + 1];
         b += kThreads) {
      parameter += table.trust[b].parameter_squares;
      update += table.trust[b].update_squares;
    }
    shared.parameter.lanes[t] = parameter;
    shared.update.lanes[t] = update;
  }

  static DEMI_HOST_DEVICE void apply(const StepTable& table, const Block& block, int t,
                                     float rate) {
    const TensorEntry tensor = table.tensors[block.tensor];
    Coefficients c = table.coefficients[block.tensor];
    c.negative_rate = rate;
    const std::int64_t start = block.index * kBlock, n = tensor.length;
    const bool vector = Update<Rule::lamb>::all_aligned(tensor, 2);
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t i = start + packet_at(t, r);
      if (i >= n) break;
      Packet parameter = load_packet(tensor.parameter, Storage::fp32, i, n, vector);
      const Packet first = load_packet(tensor.moment[0], Storage::fp32, i, n, vector);
      const Packet second = load_packet(tensor.moment[1], Storage::fp32, i, n, vector);
      for (int k = 0; k < kPacket; ++k) {
        Elements<float> e{parameter.v[k], 0.0f, {first.v[k], second.v[k], 0.0f}};
        lamb_apply(e, c);
        parameter.v[k] = e.parameter;
      }
      Update<Rule::lamb>::store_parameter(tensor, i, vector, parameter);
    }
  }

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t b, int t,
                                     Shared& shared) {
    const Block& block = table.blocks[b];
    if (table.state->skipped != 0.0f || !table.tensors[block.tensor].gradient) return;
    if (p == 0) {
      gather(table, block.tensor, t, shared);
    } else if (p <= Fold::phases) {
      shared.parameter.phase(p - 1, t);
      shared.update.phase(p - 1, t);
    } else if (p == phases - 2) {
      const Group& group = table.groups[table.tensors[block.tensor].group];
      const double rate = learning_rate(group, table.state->taken - 1);
      if (t == 0)
        shared.rate = trust_rate(group, rate, shared.parameter.lanes[0], shared.update.lanes[0]);
    } else {
      apply(table, block, t, shared.rate);
    }
  }
};

}  // namespace
}  // namespace demi::kernels::cuda

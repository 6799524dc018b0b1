#pragma once

#include <cstdint>
#include <type_traits>

#include "demi/kernels/cuda/packets.h"
#include "demi/kernels/decision.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/lanes.h"

// The CUDA kernels as bodies: phases that one thread of one thread block runs, with a barrier
// between them and nothing but Shared, and a thread's own Carry where a body has one, carried over.
// plugin.cu runs them on the device; emulation.h runs the same source on the host, thread after
// thread, for the tests.
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

/// 256 partial sums folded by halving: phases 0 ... 7.
struct Fold {
  double lanes[kThreads];
  static constexpr int phases = 8;
  static DEMI_HOST_DEVICE void halve(double (&lanes)[kThreads], int p, int t) {
    const int half = kThreads >> (p + 1);
    if (t < half) lanes[t] += lanes[t + half];
  }
  DEMI_HOST_DEVICE void phase(int p, int t) { halve(lanes, p, t); }
};

/// Counts a thread block that is done with its part; true for the last of `thread_blocks`, which
/// then sees what all of them wrote (read it by load_fresh). Leaves the count at 0 again. The
/// pattern of CUDA's threadFenceReduction sample.
DEMI_HOST_DEVICE bool arrives_last(std::uint32_t& arrived, std::int64_t thread_blocks) {
  const auto others = static_cast<std::uint32_t>(thread_blocks - 1);
#if defined(__CUDA_ARCH__)
  __threadfence();
  const bool last = atomicInc(&arrived, others) == others;
  __threadfence();
  return last;
#else
  arrived = arrived == others ? 0 : arrived + 1;
  return arrived == 0;
#endif
}

/// From the memory that all thread blocks share, past this one's own cache.
DEMI_HOST_DEVICE Partial load_fresh(const Partial& partial) {
#if defined(__CUDA_ARCH__)
  return {__ldcg(&partial.sum_of_squares), __ldcg(&partial.greatest_bits), 0};
#else
  return partial;
#endif
}

DEMI_HOST_DEVICE TrustPartial load_fresh(const TrustPartial& partial) {
#if defined(__CUDA_ARCH__)
  return {__ldcg(&partial.parameter_squares), __ldcg(&partial.update_squares)};
#else
  return partial;
#endif
}

/// Pass 1, and its sums: the thread block that is done last adds up what all of them left, in the
/// order of lanes.h, so that it does not matter which one that is.
struct Measure {
  struct Shared {
    SquareSum sum;
    Fold all;
    std::uint32_t greatest[kThreads];
    bool last;
  };
  static constexpr int kArrive = 1 + SquareSum::phases;  // the phase in which a block's sums end
  static constexpr int kGather = kArrive + 1;
  static constexpr int phases = kGather + 1 + Fold::phases + 1;
  static constexpr bool kAllBlocks = true;  // whatever range the table names

  /// Whether this thread block has nothing to do from phase p on; the same for all its threads.
  static DEMI_HOST_DEVICE bool ends(int p, const Shared& shared) {
    return p == kGather && !shared.last;
  }

  /// One thread block even if there is no block of elements: the sums are still needed.
  static DEMI_HOST_DEVICE std::int64_t thread_blocks(const StepTable& table) {
    return table.block_count > 0 ? table.block_count : 1;
  }

  static DEMI_HOST_DEVICE void read(const StepTable& table, std::int64_t b, int t, Shared& shared) {
    double sums[kPacket] = {};
    std::uint32_t greatest = 0;
    if (b < table.block_count) {
      const Block block = table.blocks[b];
      const TensorEntry& tensor = table.tensors[block.tensor];
      const void* gradient = tensor.gradient;
      const Storage storage = tensor.gradient_storage;
      const std::int64_t start = block.index * kBlock, n = gradient ? tensor.length : 0;
      const bool vector = is_aligned(gradient);
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
    }
    shared.sum.put(t, sums);
    shared.greatest[t] = greatest;
  }

  static DEMI_HOST_DEVICE void keep_greater(Shared& shared, int t, int other) {
    if (shared.greatest[other] > shared.greatest[t]) shared.greatest[t] = shared.greatest[other];
  }

  static DEMI_HOST_DEVICE void arrive(const StepTable& table, std::int64_t b, Shared& shared) {
    keep_greater(shared, 0, 1);
    if (b < table.block_count) {
      const Partial partial{shared.sum.lanes[0], shared.greatest[0], 0};
      table.partials[b] = table.tensors[table.blocks[b].tensor].unscaled
                              ? with_scale(partial, inverse_scale_of(table.inputs))
                              : partial;
    }
    shared.last = arrives_last(table.state->arrived, thread_blocks(table));
  }

  static DEMI_HOST_DEVICE void gather(const StepTable& table, int t, Shared& shared) {
    double sum = 0;
    std::uint32_t greatest = 0;
    for (std::int64_t b = t; b < table.block_count; b += kThreads) {
      const Partial partial = load_fresh(table.partials[b]);
      sum += partial.sum_of_squares;
      greatest = partial.greatest_bits > greatest ? partial.greatest_bits : greatest;
    }
    shared.all.lanes[t] = sum;
    shared.greatest[t] = greatest;
  }

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t b, int t,
                                     Shared& shared) {
    if (p == 0) {
      read(table, b, t, shared);
    } else if (p < kArrive) {
      shared.sum.phase(p - 1, t);
      const int half = kThreads >> p;  // 128 ... 2; the last one in `arrive`
      if (t < half) keep_greater(shared, t, t + half);
    } else if (p == kArrive) {
      if (t == 0) arrive(table, b, shared);
    } else if (p == kGather) {
      gather(table, t, shared);
    } else if (p < phases - 1) {
      const int q = p - kGather - 1, half = kThreads >> (q + 1);
      shared.all.phase(q, t);
      if (t < half) keep_greater(shared, t, t + half);
    } else if (t == 0) {
      record_sums(table.inputs, shared.all.lanes[0], shared.greatest[0], *table.state);
    }
  }
};

/// Element k of packets, without a gradient.
template <int kMost>
DEMI_HOST_DEVICE Elements<float> elements(const Packet& parameter,
                                          const Packet (&moment)[kMost + 1], int k) {
  Elements<float> e{};
  e.parameter = parameter.v[k];
  DEMI_UNROLLED
  for (int m = 0; m < kMost; ++m) e.moment[m] = moment[m].v[k];
  return e;
}

/// What all gradients of a tensor are multiplied by.
struct Factors {
  float inverse_scale, clip;
};

/// A tensor's direction, if the rule writes or reads one. Its blocks lie in a row, aligned as the
/// whole is.
struct DirectionArray {
  void* values = nullptr;
  Storage storage = Storage::none;
  bool vector = false;

  DirectionArray() = default;
  DEMI_HOST_DEVICE DirectionArray(const StepTable& table, std::int32_t tensor)
      : values(direction_of(table, tensor)),
        storage(table.direction_storage),
        vector(is_aligned(values)) {}
  template <UpdateRule rule>
  DEMI_HOST_DEVICE void load(std::int64_t i, std::int64_t n, Packet& packet) const {
    if constexpr (RuleOf<rule>::kDirection == Direction::read)
      packet = load_packet(values, storage, i, n, vector);
  }
  template <UpdateRule rule>
  DEMI_HOST_DEVICE void store(std::int64_t i, std::int64_t n, const Packet& packet) const {
    if constexpr (RuleOf<rule>::kDirection == Direction::written)
      store_packet(values, storage, i, n, vector, packet);
  }
};

/// Weights and states that lie in FP32.
struct PlainArrays {
  struct Streams {
    Streams() = default;
    DEMI_HOST_DEVICE Streams(const StepTable&, const TensorEntry&) {}
  };
  static DEMI_HOST_DEVICE Packet load(const TensorEntry& tensor, int m, std::int64_t i,
                                      bool vector) {
    return load_packet(tensor.moment[m], Storage::fp32, i, tensor.length, vector);
  }
  static DEMI_HOST_DEVICE Packet load_parameter(const TensorEntry& tensor, std::int64_t i,
                                                bool vector) {
    return load_packet(tensor.parameter, Storage::fp32, i, tensor.length, vector);
  }
  /// Leaves in the packet what is stored of it.
  static DEMI_HOST_DEVICE void store(const TensorEntry& tensor, const Streams&, int m,
                                     std::int64_t i, bool vector, Packet& packet) {
    store_packet(tensor.moment[m], Storage::fp32, i, tensor.length, vector, packet);
  }
  static DEMI_HOST_DEVICE void store_parameter(const TensorEntry& tensor, const Streams&,
                                               std::int64_t i, bool vector,
                                               const Packet& parameter) {
    store_packet(tensor.parameter, Storage::fp32, i, tensor.length, vector, parameter);
    for (int k = 0; k < 2; ++k) {
      if (tensor.copy[k])
        store_packet(tensor.copy[k], tensor.copy_storage[k], i, tensor.length, vector, parameter);
    }
  }
  /// Whether 16-byte accesses may be used on all arrays.
  template <UpdateRule rule>
  static DEMI_HOST_DEVICE bool all_aligned(const TensorEntry& tensor, std::uint32_t arrays) {
    bool aligned = is_aligned(tensor.parameter) && is_aligned(tensor.gradient) &&
                   is_aligned(tensor.copy[0]) && is_aligned(tensor.copy[1]);
    for (int m = 0; m < kArrays<rule>; ++m) {
      if (is_kept<rule>(arrays, m)) aligned = aligned && is_aligned(tensor.moment[m]);
    }
    return aligned;
  }
};

/// Pass 2 of a rule. With a trust ratio: the thread block of a tensor that is done last adds up
/// what all of them left, so that each partial sum is read once, and decides the tensor's trust
/// ratio.
template <UpdateRule rule, class Arrays = PlainArrays>
struct Update {
  struct Empty {};
  struct Sums {
    SquareSum parameter, update;  // their lanes hold the tensor's sums afterwards
    bool last;
  };
  static constexpr bool trust = RuleOf<rule>::kTrust;
  using Shared = std::conditional_t<trust, Sums, Empty>;
  static constexpr int kArrive = 1 + SquareSum::phases;
  static constexpr int kGather = kArrive + 1;
  static constexpr int phases = trust ? kGather + 1 + Fold::phases + 1 : 1;

  /// Whether this thread block has nothing to do from phase p on; the same for all its threads.
  static DEMI_HOST_DEVICE bool ends(int p, const Shared& shared) {
    if constexpr (trust) return p == kGather && !shared.last;
    return false;
  }

  static DEMI_HOST_DEVICE void one_packet(const TensorEntry& tensor, const Coefficients& c,
                                          const typename Arrays::Streams& streams,
                                          const DirectionArray& directions, Factors factors,
                                          std::int64_t i, bool vector,
                                          double (&squares)[2][kPacket]) {
    constexpr int kMost = kArrays<rule>;
    const std::int64_t n = tensor.length;
    Packet gradient{};
    if (reads_gradient<rule>(c.flags))
      gradient = load_packet(tensor.gradient, tensor.gradient_storage, i, n, vector);
    Packet parameter = Arrays::load_parameter(tensor, i, vector);
    Packet moment[kMost + 1];
    DEMI_UNROLLED
    for (int m = 0; m < kMost; ++m) {
      if (is_kept<rule>(c.arrays, m)) moment[m] = Arrays::load(tensor, m, i, vector);
    }
    Packet direction{};
    directions.load<rule>(i, n, direction);
    for (int k = 0; k < kPacket; ++k) {
      Elements<float> e = elements<kMost>(parameter, moment, k);
      e.gradient = true_gradient(gradient.v[k], factors.inverse_scale, factors.clip, c);
      e.direction = direction.v[k];
      kernels::update<rule>(e, c);
      DEMI_UNROLLED
      for (int m = 0; m < kMost; ++m) moment[m].v[k] = e.moment[m];
      direction.v[k] = e.direction;
      if constexpr (kMovesParameter<rule>) parameter.v[k] = e.parameter;
    }
    directions.store<rule>(i, n, direction);
    DEMI_UNROLLED
    for (int m = 0; m < kMost; ++m) {
      if (is_kept<rule>(c.arrays, m)) Arrays::store(tensor, streams, m, i, vector, moment[m]);
    }
    if constexpr (kMovesParameter<rule>) {
      Arrays::store_parameter(tensor, streams, i, vector, parameter);
    } else if constexpr (trust) {
      for (int k = 0; k < kPacket && i + k < n; ++k) {
        const Elements<float> e = elements<kMost>(parameter, moment, k);
        const double x = e.parameter, u = RuleOf<rule>::direction(e, c);
        squares[0][k] += x * x;
        squares[1][k] += u * u;
      }
    }
  }

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t b, int t,
                                     Shared& shared) {
    if (table.state->skipped != 0.0f) return;
    if (p == 0) {
      const Block block = table.blocks[b];
      const TensorEntry tensor = table.tensors[block.tensor];
      const Coefficients c = table.coefficients[block.tensor];
      const float inverse_scale = tensor.unscaled ? 1.0f : table.state->inverse_scale;
      const float clip_factor = table.state->clip_factor;
      const std::int64_t start = block.index * kBlock, n = tensor.gradient ? tensor.length : 0;
      const bool vector = Arrays::template all_aligned<rule>(tensor, c.arrays);
      const typename Arrays::Streams streams(table, tensor);
      DirectionArray directions;
      if constexpr (RuleOf<rule>::kDirection != Direction::none)
        directions = DirectionArray(table, block.tensor);
      double squares[2][kPacket] = {};
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t i = start + packet_at(t, r);
        if (i < n)
          one_packet(tensor, c, streams, directions, {inverse_scale, clip_factor}, i, vector,
                     squares);
      }
      if constexpr (trust) {
        shared.parameter.put(t, squares[0]);
        shared.update.put(t, squares[1]);
      }
      return;
    }
    if constexpr (trust) {
      if (p < kArrive) {
        shared.parameter.phase(p - 1, t);
        shared.update.phase(p - 1, t);
      } else if (p == kArrive) {
        if (t == 0) arrive(table, b, shared);
      } else if (p == kGather) {
        gather(table, table.blocks[b].tensor, t, shared);
      } else if (p < phases - 1) {
        Fold::halve(shared.parameter.lanes, p - kGather - 1, t);
        Fold::halve(shared.update.lanes, p - kGather - 1, t);
      } else if (t == 0) {
        decide_rate(table, table.blocks[b].tensor, shared);
      }
    }
  }

 private:
  static DEMI_HOST_DEVICE void arrive(const StepTable& table, std::int64_t b, Sums& shared) {
    const std::int32_t tensor = table.blocks[b].tensor;
    table.trust[b] = {shared.parameter.lanes[0], shared.update.lanes[0]};
    // Without a gradient the tensor's coefficients, with their count, were not set in this step.
    shared.last = table.tensors[tensor].gradient &&
                  arrives_last(table.coefficients[tensor].arrived,
                               table.first_block[tensor + 1] - table.first_block[tensor]);
  }

  static DEMI_HOST_DEVICE void gather(const StepTable& table, std::int32_t tensor, int t,
                                      Sums& shared) {
    double parameter = 0, update = 0;
    for (std::int64_t b = table.first_block[tensor] + t; b < table.first_block[tensor + 1];
         b += kThreads) {
      const TrustPartial partial = load_fresh(table.trust[b]);
      parameter += partial.parameter_squares;
      update += partial.update_squares;
    }
    shared.parameter.lanes[t] = parameter;
    shared.update.lanes[t] = update;
  }

  static DEMI_HOST_DEVICE void decide_rate(const StepTable& table, std::int32_t tensor,
                                           const Sums& shared) {
    const Group& group = table.groups[table.tensors[tensor].group];
    table.coefficients[tensor].negative_rate =
        trust_rate(group, learning_rate(group, table.state->taken - 1), shared.parameter.lanes[0],
                   shared.update.lanes[0]);
  }
};

/// Between the passes: one thread block for the whole table.
struct Decide {
  struct Shared {
    std::int64_t taken;  // before this step
  };
  static constexpr int phases = 2;

  static DEMI_HOST_DEVICE void phase(int p, const StepTable& table, std::int64_t, int t,
                                     Shared& shared) {
    if (p == 0) {
      if (t != 0) return;
      shared.taken = table.state->taken;
      record_decision(table.inputs, *table.state);
      return;
    }
    if (table.state->skipped != 0.0f) return;
    for (std::int32_t k = t; k < table.tensor_count; k += kThreads) {
      const TensorEntry& tensor = table.tensors[k];
      if (!tensor.gradient) continue;
      const Group& group = table.groups[tensor.group];
      const std::int64_t step = *tensor.step += 1;
      table.coefficients[k] = tensor_coefficients(
          group_coefficients(group.rule, group, learning_rate(group, shared.taken), step,
                             tensor.scalar, tensor.rate_factor),
          tensor);
    }
  }
};

/// Pass 3 of a rule with a trust ratio, with the rates that pass 2 has decided.
template <UpdateRule rule, class Arrays = PlainArrays>
struct ApplyTrust {
  struct Shared {};
  static constexpr int phases = 1;

  static DEMI_HOST_DEVICE void one_packet(const TensorEntry& tensor, const Coefficients& c,
                                          const typename Arrays::Streams& streams, std::int64_t i,
                                          bool vector) {
    constexpr int kMost = kArrays<rule>;
    Packet parameter = Arrays::load_parameter(tensor, i, vector);
    Packet moment[kMost + 1];
    DEMI_UNROLLED
    for (int m = 0; m < kMost; ++m)
      if (is_kept<rule>(c.arrays, m)) moment[m] = Arrays::load(tensor, m, i, vector);
    for (int k = 0; k < kPacket; ++k) {
      Elements<float> e = elements<kMost>(parameter, moment, k);
      kernels::apply_trust<rule>(e, c);
      parameter.v[k] = e.parameter;
    }
    Arrays::store_parameter(tensor, streams, i, vector, parameter);
  }

  static DEMI_HOST_DEVICE void phase(int, const StepTable& table, std::int64_t b, int t, Shared&) {
    const Block block = table.blocks[b];
    const TensorEntry tensor = table.tensors[block.tensor];
    if (table.state->skipped != 0.0f || !tensor.gradient) return;
    const Coefficients c = table.coefficients[block.tensor];
    const std::int64_t start = block.index * kBlock;
    const bool vector = Arrays::template all_aligned<rule>(tensor, c.arrays);
    const typename Arrays::Streams streams(table, tensor);
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t i = start + packet_at(t, r);
      if (i < tensor.length) one_packet(tensor, c, streams, i, vector);
    }
  }
};

}  // namespace
}  // namespace demi::kernels::cuda

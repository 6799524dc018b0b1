#pragma once

#include <cstdint>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cuda/packets.h"
#include "demi/kernels/host_device.h"

// The passes of batch_norm.h by a device's threads, channels last: a thread computes a channel of a
// piece, by the CPU's own loops, so that the bits are the CPU's. Neighbouring threads read
// neighbouring channels. plugin.cu runs it on the device, testing/emulation.h on the host.
namespace demi::kernels {
namespace {

template <class Wide>
inline constexpr std::int64_t kWidthOf = 1;

template <Storage storage>
DEMI_HOST_DEVICE float get(float, const void* array, std::int64_t i) {
  return cuda::load_one(array, storage, i);
}
template <Storage storage>
DEMI_HOST_DEVICE void put(void* array, std::int64_t i, float x) {
  cuda::store_one(array, storage, i, x);
}
DEMI_HOST_DEVICE float get_float(float, const float* array, std::int64_t i) { return array[i]; }
DEMI_HOST_DEVICE void put_float(float* array, std::int64_t i, float x) { array[i] = x; }
DEMI_HOST_DEVICE float get_byte(float, const std::uint8_t* array, std::int64_t i) {
  return array[i];
}
DEMI_HOST_DEVICE void put_byte(std::uint8_t* array, std::int64_t i, float x) {
  array[i] = static_cast<std::uint8_t>(x);
}
template <Storage storage>
DEMI_HOST_DEVICE float rounded(float x) {
  if constexpr (storage == Storage::fp32) return x;
  return cuda::widen(cuda::narrow(x, storage), storage);
}

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/batch_norm_join.h"
#include "demi/kernels/batch_norm_pixels.h"

namespace demi::kernels::cuda {
namespace {

/// One pass over elements of one storage. A launch has thread_blocks() of kThreads.
template <Storage storage, BatchNormPass pass>
struct BatchNormThreads {
  static constexpr int kThreads = 256;

  /// Threads of a piece, and the pieces of a thread block.
  static DEMI_HOST_DEVICE std::int64_t width(const BatchNorm& norm) {
    return lesser(norm.channels, kThreads);
  }
  static DEMI_HOST_DEVICE std::int64_t pieces_at_once(const BatchNorm& norm) {
    return kThreads / width(norm);
  }
  static std::int64_t thread_blocks(const BatchNorm& norm, std::int64_t count) {
    return pieces(count, pieces_at_once(norm));
  }

  /// Thread t of thread block b, of a pass that has `count` pieces.
  static DEMI_HOST_DEVICE void run(const BatchNorm& norm, std::int64_t count, std::int64_t b,
                                   int t) {
    const std::int64_t at = t / width(norm), piece = b * pieces_at_once(norm) + at;
    if (at >= pieces_at_once(norm) || piece >= count) return;
    for (std::int64_t c = t % width(norm); c < norm.channels; c += width(norm))
      channel(norm, piece, {c, c + 1});
  }

 private:
  static DEMI_HOST_DEVICE void channel(const BatchNorm& norm, std::int64_t piece, Channels of) {
    [[maybe_unused]] const bool pools = norm.pool.any();
    if constexpr (pass == BatchNormPass::statistics) {
      statistics_of_pixels<float, storage>(norm, piece, of);
    } else if constexpr (pass == BatchNormPass::forward) {
      pools ? pooled_forward_of_line<float, storage>(norm, piece, of)
            : forward_of_pixels<float, storage>(norm, piece, of);
    } else if constexpr (pass == BatchNormPass::gradient_sums) {
      if (pools && norm.add_gradient) pooled_add_gradient<float, storage>(norm, piece, of);
      reads_windows(norm) ? pooled_gradient_sums<float, storage>(norm, piece, of)
                          : gradient_sums_of_pixels<float, storage>(norm, piece, of);
    } else {
      reads_windows(norm) ? pooled_backward_of_line<float, storage>(norm, piece, of)
                          : backward_of_pixels<float, storage>(norm, piece, of);
    }
  }
};

/// act(body) with the body of that pass and storage.
template <Storage storage, class Act>
void with_pass(BatchNormPass pass, Act act) {
  switch (pass) {
    case BatchNormPass::statistics:
      return act(BatchNormThreads<storage, BatchNormPass::statistics>());
    case BatchNormPass::forward:
      return act(BatchNormThreads<storage, BatchNormPass::forward>());
    case BatchNormPass::gradient_sums:
      return act(BatchNormThreads<storage, BatchNormPass::gradient_sums>());
    default:
      return act(BatchNormThreads<storage, BatchNormPass::backward>());
  }
}
template <class Act>
void with_batch_norm(const BatchNorm& norm, BatchNormPass pass, Act act) {
  switch (norm.storage) {
    case Storage::bf16:
      return with_pass<Storage::bf16>(pass, act);
    case Storage::fp16:
      return with_pass<Storage::fp16>(pass, act);
    default:
      return with_pass<Storage::fp32>(pass, act);
  }
}

/// Rows of sums joined in the order of batch_norm_join.h, without atomics: a thread block has
/// kChannels channels, and a thread for each lane of each, so that neighbouring threads read
/// neighbouring channels. In phases with a barrier between them (bodies.h).
struct JoinThreads {
  static constexpr int kChannels = 32;
  static constexpr int kThreads = kChannels * static_cast<int>(kJoinLanes);

  struct Shared {
    double first[kJoinLanes][kChannels], second[kJoinLanes][kChannels];
  };
  struct At {
    std::int64_t lane, channel;  // of the block's
    std::int64_t c;              // of all
  };

  static std::int64_t thread_blocks(const BatchNorm& norm) {
    return pieces(norm.channels, kChannels);
  }
  static DEMI_HOST_DEVICE At place_of(std::int64_t b, int t) {
    return {t / kChannels, t % kChannels, b * kChannels + t % kChannels};
  }
  /// The sum of term(row) over the lane's rows.
  template <class Term>
  static DEMI_HOST_DEVICE double sum_of_lane(std::int64_t lane, std::int64_t rows, Term term) {
    double sum = 0;
    for (std::int64_t row = lane; row < rows; row += kJoinLanes) sum += term(row);
    return sum;
  }
  /// Phases that add up a channel's lanes, the first of which is number 0; then lane 0 has the sum.
  static constexpr int kHalvings = 5;
  static DEMI_HOST_DEVICE void halve(int number, double (&lanes)[kJoinLanes][kChannels],
                                     const At& at, std::int64_t rows) {
    const std::int64_t half = kJoinLanes >> (number + 1);
    if (at.lane < half && at.lane + half < lanes_of(rows))
      lanes[at.lane][at.channel] += lanes[at.lane + half][at.channel];
  }
};
static_assert(std::int64_t{1} << JoinThreads::kHalvings == kJoinLanes);

/// The statistics' sums, or without them the running statistics, to what forward needs.
struct JoinStatistics : JoinThreads {
  using Arguments = ChannelStatistics;
  static constexpr int phases = 2 * (1 + kHalvings) + 1;

  static DEMI_HOST_DEVICE void phase(int p, const BatchNorm& norm, const ChannelStatistics& to,
                                     std::int64_t b, int t, Shared& shared) {
    const At at = place_of(b, t);
    if (at.c >= norm.channels) return;
    if (!norm.sums) {
      if (p == 0 && at.lane == 0) put_given_statistics(norm, to, at.c);
      return;
    }
    const std::int64_t rows = statistics_rows(norm);
    constexpr int kSecond = 1 + kHalvings;  // the first phase of the squares
    if (p == 0) {
      shared.first[at.lane][at.channel] = sum_of_lane(at.lane, rows, [&](std::int64_t row) {
        return term_of_mean(part_of(row_of(norm, row), at.c));
      });
    } else if (p < kSecond) {
      halve(p - 1, shared.first, at, rows);
    } else {
      const double mean = shared.first[0][at.channel] / static_cast<double>(pixels(norm));
      if (p == kSecond)
        shared.second[at.lane][at.channel] = sum_of_lane(at.lane, rows, [&](std::int64_t row) {
          return term_of_squares(part_of(row_of(norm, row), at.c), mean);
        });
      else if (p < phases - 1)
        halve(p - kSecond - 1, shared.second, at, rows);
      else if (at.lane == 0)
        put_statistics(norm, to, at.c, mean, shared.second[0][at.channel]);
    }
  }
};

/// The sums of gradients to what backward needs, and the gradients of weight and bias.
struct JoinGradients : JoinThreads {
  using Arguments = ChannelGradients;
  static constexpr int phases = 1 + kHalvings + 1;

  static DEMI_HOST_DEVICE void phase(int p, const BatchNorm& norm, const ChannelGradients& to,
                                     std::int64_t b, int t, Shared& shared) {
    const At at = place_of(b, t);
    if (at.c >= norm.channels) return;
    const std::int64_t rows = gradient_rows(norm), width = norm.channels;
    if (p == 0) {
      const float* const sums = norm.sums + at.c;
      shared.first[at.lane][at.channel] = sum_of_lane(
          at.lane, rows, [&](std::int64_t row) { return double{sums[row * 2 * width]}; });
      shared.second[at.lane][at.channel] = sum_of_lane(
          at.lane, rows, [&](std::int64_t row) { return double{sums[(row * 2 + 1) * width]}; });
    } else if (p < phases - 1) {
      halve(p - 1, shared.first, at, rows);
      halve(p - 1, shared.second, at, rows);
    } else if (at.lane == 0) {
      put_gradients(norm, to, at.c, shared.first[0][at.channel], shared.second[0][at.channel]);
    }
  }
};

}  // namespace
}  // namespace demi::kernels::cuda

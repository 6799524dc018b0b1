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
      pools ? pooled_gradient_sums<float, storage>(norm, piece, of)
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

}  // namespace
}  // namespace demi::kernels::cuda

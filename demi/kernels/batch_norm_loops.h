#pragma once

#include <cstdint>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/batch_norm_elements.h"
#include "demi/kernels/batch_norm_pixels.h"
#include "demi/kernels/batch_norm_pooled_planes.h"
#include "demi/kernels/wide_loops.h"

// The passes of batch_norm.h, written once for float and for the vectors of an instruction set
// (wide_loops.h). The including file defines, besides:
//
//   get_byte, put_byte                          as get_float and put_float, of whole numbers below
//   256 get_every(Wide, array, i, stride)           floats i, i + stride and so on, a whole vector
//   of
//                                               them; that of stride 2 reads one more
namespace demi::kernels {
namespace {

// ---- Planes: channels before height and width. Sums are those of sum_terms(). ----

template <class Wide, Storage storage>
void statistics_of_plane(BatchNorm norm, std::int64_t piece) {
  const Plane plane = plane_of(norm, piece);
  float* const sums = norm.sums + plane.image * 3 * norm.channels + plane.channel;
  float* const near = sums;
  each<Wide>(1, [&](auto as, std::int64_t, auto... some) {
    put_float(near, 0, if_finite(get<storage>(as, norm.input, plane.begin, some...)), some...);
  });
  float both[2];
  sum_terms<Wide>(plane.begin, plane.pixels, both, [&](auto as, std::int64_t i, auto... some) {
    using V = decltype(as);
    const V d = get<storage>(as, norm.input, i, some...) - V(*near);
    return Terms<V, 2>{{d, d * d}};
  });
  sums[norm.channels] = both[0];
  sums[2 * norm.channels] = both[1];
}

template <class Wide, Storage storage>
void forward_of_plane(BatchNorm norm, std::int64_t piece) {
  const Plane plane = plane_of(norm, piece);
  each<Wide>(plane.pixels, [&](auto as, std::int64_t at, auto... some) {
    const auto channel = channel_of<decltype(as)>(norm, plane.channel);
    const std::int64_t i = plane.begin + at;
    put<storage>(norm.output, i, output_at<storage>(norm, channel, i, some...), some...);
  });
}

template <class Wide, Storage storage>
void gradient_sums_of_plane(BatchNorm norm, std::int64_t piece) {
  const Plane plane = plane_of(norm, piece);
  float* const sums = norm.sums + plane.image * 2 * norm.channels + plane.channel;
  const bool writes = norm.add_gradient && !norm.pool.any();
  float both[2];
  sum_terms<Wide>(plane.begin, plane.pixels, both, [&](auto as, std::int64_t i, auto... some) {
    using V = decltype(as);
    const auto channel = channel_of<V>(norm, plane.channel);
    const V x = get<storage>(as, norm.input, i, some...);
    const V g = gradient_at<storage>(norm, channel, x, i, some...);
    if (writes) put<storage>(norm.add_gradient, i, g, some...);
    return Terms<V, 2>{{g, g * (x - channel.mean)}};
  });
  sums[0] = both[0];
  sums[norm.channels] = both[1];
}

template <class Wide, Storage storage>
void pooled_gradient_sums_behind_sum_of_plane(BatchNorm norm, std::int64_t piece) {
  pooled_add_gradient_of_plane<Wide, storage>(norm, piece);
  gradient_sums_of_plane<Wide, storage>(norm, piece);
}

template <class Wide, Storage storage>
void backward_of_plane(BatchNorm norm, std::int64_t piece) {
  const Plane plane = plane_of(norm, piece);
  each<Wide>(plane.pixels, [&](auto as, std::int64_t at, auto... some) {
    using V = decltype(as);
    const auto channel = channel_of<V>(norm, plane.channel);
    const std::int64_t i = plane.begin + at;
    const Correction<V> correction = corrections_of<V>(norm, plane.channel);
    put_input_gradient<storage>(norm, channel, correction,
                                kept_gradient_at<storage>(norm, channel, i, some...), i, some...);
  });
}

// ---- All of them ----

// A copy, which a store through a pointer cannot change.
using Piece = void (*)(BatchNorm norm, std::int64_t piece);

/// All channels of a piece.
template <void (*piece_of)(BatchNorm norm, std::int64_t piece, Channels of)>
void all_channels(BatchNorm norm, std::int64_t piece) {
  piece_of(norm, piece, {0, norm.channels});
}

template <class Wide, Storage storage>
void pooled_gradient_sums_behind_sum(BatchNorm norm, std::int64_t piece, Channels of) {
  pooled_add_gradient<Wide, storage>(norm, piece, of);
  gradient_sums_of_pixels<Wide, storage>(norm, piece, of);
}

template <class Wide, Storage storage>
Piece piece_of_pixels(const BatchNorm& norm, BatchNormPass pass) {
  const bool pools = norm.pool.any();
  switch (pass) {
    case BatchNormPass::statistics:
      return all_channels<statistics_of_pixels<Wide, storage>>;
    case BatchNormPass::forward:
      return pools ? all_channels<pooled_forward_of_line<Wide, storage>>
                   : all_channels<forward_of_pixels<Wide, storage>>;
    case BatchNormPass::gradient_sums:
      if (!pools) return all_channels<gradient_sums_of_pixels<Wide, storage>>;
      return norm.add_gradient ? all_channels<pooled_gradient_sums_behind_sum<Wide, storage>>
                               : all_channels<pooled_gradient_sums<Wide, storage>>;
    default:
      return reads_windows(norm) ? all_channels<pooled_backward_of_line<Wide, storage>>
                                 : all_channels<backward_of_pixels<Wide, storage>>;
  }
}

template <class Wide, Storage storage>
Piece piece_of_planes(const BatchNorm& norm, BatchNormPass pass) {
  const bool pools = norm.pool.any();
  switch (pass) {
    case BatchNormPass::statistics:
      return statistics_of_plane<Wide, storage>;
    case BatchNormPass::forward:
      return pools ? pooled_forward_of_plane<Wide, storage> : forward_of_plane<Wide, storage>;
    case BatchNormPass::gradient_sums:
      if (!pools) return gradient_sums_of_plane<Wide, storage>;
      return norm.add_gradient ? pooled_gradient_sums_behind_sum_of_plane<Wide, storage>
                               : pooled_gradient_sums_of_plane<Wide, storage>;
    default:
      return reads_windows(norm) ? pooled_backward_of_plane<Wide, storage>
                                 : backward_of_plane<Wide, storage>;
  }
}

template <class Wide, Storage storage>
Piece piece_of(const BatchNorm& norm, BatchNormPass pass) {
  return norm.channels_last ? piece_of_pixels<Wide, storage>(norm, pass)
                            : piece_of_planes<Wide, storage>(norm, pass);
}

template <class Wide>
void batch_norm_pieces(const BatchNorm& norm, BatchNormPass pass, std::int64_t begin,
                       std::int64_t end) {
  const Piece piece = norm.storage == Storage::bf16   ? piece_of<Wide, Storage::bf16>(norm, pass)
                      : norm.storage == Storage::fp16 ? piece_of<Wide, Storage::fp16>(norm, pass)
                                                      : piece_of<Wide, Storage::fp32>(norm, pass);
  for (std::int64_t i = begin; i < end; ++i) piece(norm, i);
}

}  // namespace
}  // namespace demi::kernels

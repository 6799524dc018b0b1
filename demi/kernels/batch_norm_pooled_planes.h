#pragma once

#include <cstdint>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/batch_norm_elements.h"
#include "demi/kernels/batch_norm_pieces.h"
#include "demi/kernels/batch_norm_pixels.h"
#include "demi/kernels/wide_loops.h"

// The passes of batch_norm.h with max pooling, with channels before height and width. Included by
// batch_norm_loops.h, which says what the including file defines. Sums are those of sum_terms().
namespace demi::kernels {
namespace {

struct Plane {
  std::int64_t image, channel, begin, pixels;
};
inline Plane plane_of(const BatchNorm& norm, std::int64_t piece) {
  const std::int64_t n = norm.height * norm.width;
  return {piece / norm.channels, piece % norm.channels, piece * n, n};
}

/// Windows of a line that are computed together, and the places of the input that they hold at
/// most. Scratch has space for a vector behind them.
inline constexpr std::int64_t kWindows = 128;
inline constexpr std::int64_t kMostLanes = 16;
inline constexpr std::int64_t kPlaces = (kWindows + kMostLanes) * kLongestWindow + kMostLanes;

/// As each(), but with a whole vector wherever `room` elements, n or more, reach: what a store
/// writes behind the n is written again later.
template <class Wide, class Body>
inline __attribute__((always_inline)) void each_with_room(std::int64_t n, std::int64_t room,
                                                          Body body) {
  std::int64_t i = 0;
  for (; i < n && i + kWidthOf<Wide> <= room; i += kWidthOf<Wide>) body(Wide(0.0f), i);
  constexpr bool kHasRest = kWidthOf<Wide> != 1;
  if constexpr (kHasRest)
    if (i < n) body(Wide(0.0f), i, static_cast<int>(n - i));
}

/// Columns of a line of windows, which begin at window `first`: place 0 is the input's column
/// `origin`, and [begin, end) of the places lie within the input.
struct Span {
  std::int64_t count, origin, begin, end;
};
inline Span span_of(const BatchNorm& norm, std::int64_t first) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t count = lesser(kWindows, pool.width - first);
  const std::int64_t origin = first * pool.stride[1] - pool.padding[1];
  const std::int64_t places = (count - 1) * pool.stride[1] + pool.size[1];
  return {count, origin, greater(0, -origin), lesser(places, norm.width - origin)};
}

/// v of a span of the input's line that starts at element `line`, rounded to `storage`; -Inf in
/// front of the line and behind it.
template <class Wide, Storage storage>
inline void put_values(const BatchNorm& norm, std::int64_t channel, std::int64_t line,
                       const Span& span, float* to) {
  const std::int64_t from = line + span.origin + span.begin;
  each_with_room<Wide>(
      span.end - span.begin, norm.channels * pixels(norm) - from,
      [&](auto as, std::int64_t at, auto... some) {
        const auto of = channel_of<decltype(as)>(norm, channel);
        put_float(to, span.begin + at,
                  rounded<storage>(value_at<storage>(norm, of, from + at, some...)), some...);
      });
  const std::int64_t read = (span.count + kWidthOf<Wide>)*norm.pool.stride[1] + norm.pool.size[1];
  for (std::int64_t at = 0; at < span.begin; ++at) to[at] = -__builtin_inff();
  for (std::int64_t at = span.end; at < read; ++at) to[at] = -__builtin_inff();
}

template <class Wide, Storage storage>
void pooled_forward_of_plane(BatchNorm norm, std::int64_t piece) {
  const Plane plane = plane_of(norm, piece);
  const PoolWindows& pool = norm.pool;
  float values[kLongestWindow][kPlaces], first_place[kWindows + kMostLanes];
  const std::int64_t end = (piece + 1) * pool.height * pool.width;
  const bool is_whole = pool.width <= kWindows;  // so that the next line is written after this one
  for (std::int64_t w = 0; w < pool.width; w += kWindows) {
    const Span span = span_of(norm, w);
    for (std::int64_t at = 0; at < span.count + kWidthOf<Wide>; ++at)
      first_place[at] = static_cast<float>(greater(0, pool.padding[1] - (w + at) * pool.stride[1]));
    for (std::int64_t h = 0; h < pool.height; ++h) {
      const Places rows = places_of(norm, 0, h);
      for (std::int64_t r = rows.begin; r < rows.end; ++r)
        put_values<Wide, storage>(norm, plane.channel, plane.begin + (rows.origin + r) * norm.width,
                                  span, values[r]);
      const std::int64_t begin = (piece * pool.height + h) * pool.width + w;
      const auto first_of_line = static_cast<float>(rows.begin * pool.size[1]);
      each_with_room<Wide>(
          span.count, is_whole ? end - begin : span.count,
          [&](auto as, std::int64_t at, auto... some) {
            using V = decltype(as);
            Greatest<V> greatest{V(-__builtin_inff()),
                                 V(first_of_line) + get_float(as, first_place, at)};
            for (std::int64_t r = rows.begin; r < rows.end; ++r)
              for (std::int64_t k = 0; k < pool.size[1]; ++k)
                greatest.meet(get_every(as, values[r], at * pool.stride[1] + k, pool.stride[1]),
                              static_cast<float>(r * pool.size[1] + k));
            put_greatest<storage>(norm, greatest, begin + at, some...);
          });
    }
  }
}

/// The bits of an element.
template <Storage storage>
struct BitsOf {
  using Type = std::uint16_t;
};
template <>
struct BitsOf<Storage::fp32> {
  using Type = float;
};

/// x at the places that output elements have chosen: `count` of a plane's, the first of which is
/// its output `at`. Of a window without a gradient some x of the plane. `step` has a place's
/// distance from place 0.
template <Storage storage, class V>
inline V chosen_inputs(const BatchNorm& norm, const Plane& plane, const std::uint8_t* chosen,
                       std::int64_t at, int count, const std::int64_t* step, V as) {
  using Bits = typename BitsOf<storage>::Type;
  const PoolWindows& pool = norm.pool;
  const Bits* const input = static_cast<const Bits*>(norm.input) + plane.begin;
  const std::int64_t h = at / pool.width;
  std::int64_t w = at % pool.width;
  std::int64_t line = (h * pool.stride[0] - pool.padding[0]) * norm.width - pool.padding[1];
  Bits x[kWidthOf<V>] = {};
  for (int l = 0; l < count; ++l) {
    const std::uint8_t place = chosen[at + l];
    x[l] = input[place == kNoPlace ? 0 : line + w * pool.stride[1] + step[place]];
    if (++w < pool.width) continue;
    w = 0;
    line += pool.stride[0] * norm.width;
  }
  return get<storage>(as, x, 0);
}

template <class V>
inline int count_of(V) {
  return static_cast<int>(kWidthOf<V>);
}
template <class V>
inline int count_of(V, int count) {
  return count;
}

template <class Wide, Storage storage>
void pooled_gradient_sums_of_plane(BatchNorm norm, std::int64_t piece) {
  const Plane plane = plane_of(norm, piece);
  const PoolWindows& pool = norm.pool;
  std::int64_t step[kLongestWindow * kLongestWindow];
  for (std::int64_t place = 0; place < pool.size[0] * pool.size[1]; ++place)
    step[place] = place / pool.size[1] * norm.width + place % pool.size[1];
  const std::int64_t outputs = pool.height * pool.width, begin = piece * outputs;
  float* const sums = norm.sums + plane.image * 2 * norm.channels + plane.channel;
  float both[2];
  sum_terms<Wide>(begin, outputs, both, [&](auto as, std::int64_t i, auto... some) {
    using V = decltype(as);
    const V mean(norm.mean[plane.channel]), none(kNoPlace);
    const V chosen = get_byte(as, norm.chosen, i, some...);
    const V g =
        select_equal(chosen, none, V(0.0f), get<storage>(as, norm.output_gradient, i, some...));
    const V x = chosen_inputs<storage>(norm, plane, norm.chosen + begin, i - begin,
                                       count_of(as, some...), step, as);
    return Terms<V, 2>{{g, g * (select_equal(chosen, none, mean, x) - mean)}};
  });
  sums[0] = both[0];
  sums[norm.channels] = both[1];
}

/// Some windows of a line of the pooled result, as floats: their gradients and chosen places, which
/// are none behind the line's end.
struct LineOfWindows {
  float gradient[kWindows + 2 * kMostLanes], chosen[kWindows + 2 * kMostLanes];
};
template <class Wide, Storage storage>
inline void read_windows(const BatchNorm& norm, std::int64_t i, std::int64_t n, std::int64_t room,
                         LineOfWindows& to) {
  each_with_room<Wide>(n, room, [&](auto as, std::int64_t at, auto... some) {
    put_float(to.gradient, at, get<storage>(as, norm.output_gradient, i + at, some...));
    put_float(to.chosen, at, get_byte(as, norm.chosen, i + at, some...));
  });
  for (std::int64_t at = n; at < n + kWidthOf<Wide>; ++at) to.chosen[at] = kNoPlace;
}

/// Calls act(i, n, g, room) for each part of the plane's lines: g has the gradients of input
/// elements i to i + n, each the sum over its windows, row by row, and space for a vector behind
/// them. act may write `room` elements.
template <class Wide, Storage storage, class Act>
inline void each_pooled_gradient(const BatchNorm& norm, std::int64_t piece, Act act) {
  const PoolWindows& pool = norm.pool;
  const Plane plane = plane_of(norm, piece);
  const std::int64_t stride = pool.stride[1], padding = pool.padding[1];
  // Place k of window b is column (b + k / stride) stride + k % stride, counted with the padding:
  // element b + k / stride of the columns of phase k % stride.
  float phases[kLongestWindow][kWindows + 2 * kMostLanes], g[kPlaces];
  LineOfWindows line;
  const std::int64_t length = (norm.width + padding - 1) / stride + 1;
  const std::int64_t outputs = (piece + 1) * pool.height * pool.width;
  std::int64_t phase_of[kLongestWindow], step_of[kLongestWindow];
  for (std::int64_t k = 0; k < pool.size[1]; ++k) {
    phase_of[k] = k % stride;
    step_of[k] = k / stride;
  }
  for (std::int64_t first = 0; first < length; first += kWindows) {
    const std::int64_t n = lesser(kWindows, length - first);
    const std::int64_t begin = greater(0, first * stride - padding);
    const std::int64_t end = lesser(norm.width, (first + n) * stride - padding);
    for (std::int64_t h = 0; h < norm.height; ++h) {
      const Windows rows = windows_of(pool, 0, h);
      for (std::int64_t phase = 0; phase < stride; ++phase)
        clear(phases[phase], n + kWidthOf<Wide>);
      for (std::int64_t a = rows.begin; a < rows.end; ++a) {
        const std::int64_t row = (h + pool.padding[0] - a * pool.stride[0]) * pool.size[1];
        // From the last place on, so that the windows of an element come in their order.
        for (std::int64_t k = pool.size[1]; k-- > 0;) {
          const std::int64_t step = step_of[k], from = greater(0, first - step);
          const std::int64_t count = lesser(pool.width, first + n - step) - from;
          if (count <= 0) continue;
          const std::int64_t i = (piece * pool.height + a) * pool.width + from;
          const bool is_read = k + 1 < pool.size[1] && step == step_of[k + 1];
          if (!is_read) read_windows<Wide, storage>(norm, i, count, outputs - i, line);
          float* const sums = phases[phase_of[k]] + from + step - first;
          each_with_room<Wide>(
              count, count + kWidthOf<Wide>, [&](auto as, std::int64_t at, auto...) {
                using V = decltype(as);
                add_float(
                    sums, at,
                    select_equal(get_float(as, line.chosen, at), V(static_cast<float>(row + k)),
                                 get_float(as, line.gradient, at), V(0.0f)));
              });
        }
      }
      if (stride == 2)
        for (std::int64_t at = 0; at < n; ++at) {
          g[2 * at] = phases[0][at];
          g[2 * at + 1] = phases[1][at];
        }
      else
        for (std::int64_t at = 0; at < n; ++at)
          for (std::int64_t phase = 0; phase < stride; ++phase)
            g[at * stride + phase] = phases[phase][at];
      const std::int64_t i = h * norm.width + begin;
      const bool is_whole = end - begin == norm.width;
      act(plane.begin + i, end - begin, g + (begin + padding - first * stride),
          is_whole ? plane.pixels - i : end - begin);
    }
  }
}

template <class Wide, Storage storage>
void pooled_add_gradient_of_plane(const BatchNorm& norm, std::int64_t piece) {
  each_pooled_gradient<Wide, storage>(
      norm, piece, [&](std::int64_t begin, std::int64_t n, const float* g, std::int64_t room) {
        each_with_room<Wide>(n, room, [&](auto as, std::int64_t at, auto... some) {
          put<storage>(norm.add_gradient, begin + at, get_float(as, g, at), some...);
        });
      });
}

template <class Wide, Storage storage>
void pooled_backward_of_plane(BatchNorm norm, std::int64_t piece) {
  const std::int64_t c = plane_of(norm, piece).channel;
  each_pooled_gradient<Wide, storage>(
      norm, piece, [&](std::int64_t begin, std::int64_t n, const float* g, std::int64_t room) {
        each_with_room<Wide>(n, room, [&](auto as, std::int64_t at, auto... some) {
          using V = decltype(as);
          put_input_gradient<storage>(norm, channel_of<V>(norm, c), corrections_of<V>(norm, c),
                                      get_float(as, g, at), begin + at, some...);
        });
      });
}

}  // namespace
}  // namespace demi::kernels

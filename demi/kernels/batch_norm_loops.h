#pragma once

#include <cstdint>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/batch_norm_formulas.h"
#include "demi/kernels/batch_norm_pieces.h"
#include "demi/kernels/lanes.h"

// The passes of batch_norm.h, written once for float and for the vectors of an instruction set. The
// including file defines, before it includes this, for Wide, which is float or its Vector:
//
//   kWidthOf<Wide>                              elements of a vector
//   get<storage>(Wide, array, i[, count])       elements i and following; those from count on are 0
//   put<storage>(array, i, x[, count])          and back, rounded
//   get_float, put_float, get_byte, put_byte    the same of float and of whole numbers below 256
//   rounded<storage>(x)                         what put and get make of x
//
// Nothing here is a template of the standard library or otherwise weak: the linker would keep one
// instruction set's copy for all. Internal linkage.
//
// The order of sums, the same on each path. Channels last: of each channel, groups of four pixels
// as (a + b) + (c + d), one group after the other, then the pixels that are left. Otherwise: of
// each plane, kLanes sums of every kLanes-th pixel, added up by halving.
namespace demi::kernels {
namespace {

/// body(V(), i) for each full vector of the first n elements, body(V(), i, count) for the rest.
template <class Wide, class Body>
inline __attribute__((always_inline)) void each(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + kWidthOf<Wide> <= n; i += kWidthOf<Wide>) body(Wide(0.0f), i);
  constexpr bool kHasRest = kWidthOf<Wide> != 1;
  if constexpr (kHasRest)
    if (i < n) body(Wide(0.0f), i, static_cast<int>(n - i));
}

inline void clear(float* array, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) array[i] = 0.0f;
}

template <class V, class... Some>
inline Channel<V> channels_at(const BatchNorm& norm, V as, std::int64_t c, Some... some) {
  return {get_float(as, norm.mean, c, some...), get_float(as, norm.scale, c, some...),
          get_float(as, norm.shift, c, some...)};
}
template <class V>
inline Channel<V> channel_of(const BatchNorm& norm, std::int64_t c) {
  return {V(norm.mean[c]), V(norm.scale[c]), V(norm.shift[c])};
}

/// Output element i without pooling.
template <Storage storage, class V, class... Some>
inline V output_at(const BatchNorm& norm, const Channel<V>& channel, std::int64_t i, Some... some) {
  const V as(0.0f);
  V v = channel.normalised(get<storage>(as, norm.input, i, some...));
  if (norm.add) v = v + get<storage>(as, norm.add, i, some...);
  return norm.relu ? rectified(v) : v;
}

/// Element i of g without pooling, where x is the input's.
template <Storage storage, class V, class... Some>
inline V gradient_at(const BatchNorm& norm, const Channel<V>& channel, V x, std::int64_t i,
                     Some... some) {
  const V as(0.0f), gradient = get<storage>(as, norm.output_gradient, i, some...);
  if (!norm.relu) return gradient;
  if (norm.add_gradient)
    return gradient_behind_relu(gradient, get<storage>(as, norm.output, i, some...), 0.0f);
  return gradient_behind_relu(gradient, channel.normalised(x), kGreatestZero<storage>);
}

/// What takes the batch's mean and slope out of a gradient; nothing for given statistics.
template <class V>
struct Correction {
  V mean, slope;
};
template <class V>
inline Correction<V> corrections_of(const BatchNorm& norm, std::int64_t c) {
  if (!norm.mean_gradient) return {V(0.0f), V(0.0f)};
  return {V(norm.mean_gradient[c]), V(norm.slope[c])};
}
template <class V, class... Some>
inline Correction<V> corrections_at(const BatchNorm& norm, V as, std::int64_t c, Some... some) {
  if (!norm.mean_gradient) return {as, as};
  return {get_float(as, norm.mean_gradient, c, some...), get_float(as, norm.slope, c, some...)};
}

/// Writes the gradient of input element i.
template <Storage storage, class V, class... Some>
inline void put_input_gradient(const BatchNorm& norm, const Channel<V>& channel,
                               const Correction<V>& correction, V gradient, std::int64_t i,
                               Some... some) {
  if (!norm.mean_gradient) {
    put<storage>(norm.input_gradient, i, gradient * channel.scale, some...);
    return;
  }
  const V x = get<storage>(V(0.0f), norm.input, i, some...);
  put<storage>(norm.input_gradient, i,
               input_gradient(channel, x, gradient, correction.mean, correction.slope), some...);
}

/// The gradient g at input element i without pooling, which gradient_sums may have kept.
template <Storage storage, class V, class... Some>
inline V kept_gradient_at(const BatchNorm& norm, const Channel<V>& channel, std::int64_t i,
                          Some... some) {
  const V as(0.0f);
  if (norm.add_gradient) return get<storage>(as, norm.add_gradient, i, some...);
  return gradient_at<storage>(norm, channel, get<storage>(as, norm.input, i, some...), i, some...);
}

// ---- Channels last ----

struct Pixels {
  std::int64_t begin, end;
};
inline Pixels pixels_of(const BatchNorm& norm, std::int64_t piece) {
  const std::int64_t begin = piece * pixels_of_piece(norm);
  return {begin, lesser(begin + pixels_of_piece(norm), pixels(norm))};
}

template <int number>
struct Count {};

/// Calls sum_up(Count<n>(), pixel) for n = 4 and then 1 consecutive pixels.
template <class SumUp>
inline __attribute__((always_inline)) void by_four(Pixels range, SumUp sum_up) {
  std::int64_t pixel = range.begin;
  for (; pixel + 4 <= range.end; pixel += 4) sum_up(Count<4>(), pixel);
  for (; pixel < range.end; ++pixel) sum_up(Count<1>(), pixel);
}

template <class V>
inline V sum_of(const V (&of)[1]) {
  return of[0];
}
template <class V>
inline V sum_of(const V (&of)[4]) {
  return (of[0] + of[1]) + (of[2] + of[3]);
}

template <class V, class... Some>
inline void add_float(float* array, std::int64_t i, V x, Some... some) {
  put_float(array, i, get_float(V(0.0f), array, i, some...) + x, some...);
}

template <class Wide, Storage storage>
void statistics_of_pixels(BatchNorm norm, std::int64_t piece) {
  const std::int64_t width = norm.channels;
  float* const first = norm.sums + piece * 3 * width;
  float *const sum = first + width, *const squares = sum + width;
  const Pixels range = pixels_of(norm, piece);
  each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
    const auto x = get<storage>(as, norm.input, range.begin * width + c, some...);
    put_float(first, c, if_finite(x), some...);
  });
  clear(sum, 2 * width);
  by_four(range, [&]<int n>(Count<n>, std::int64_t pixel) {
    each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
      const auto near = get_float(as, first, c, some...);
      decltype(as) d[n], square[n];
      for (int k = 0; k < n; ++k) {
        d[k] = get<storage>(as, norm.input, (pixel + k) * width + c, some...) - near;
        square[k] = d[k] * d[k];
      }
      add_float(sum, c, sum_of(d), some...);
      add_float(squares, c, sum_of(square), some...);
    });
  });
}

template <class Wide, Storage storage>
void forward_of_pixels(BatchNorm norm, std::int64_t piece) {
  const std::int64_t width = norm.channels;
  const Pixels range = pixels_of(norm, piece);
  for (std::int64_t pixel = range.begin; pixel < range.end; ++pixel)
    each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
      const std::int64_t i = pixel * width + c;
      const auto channel = channels_at(norm, as, c, some...);
      put<storage>(norm.output, i, output_at<storage>(norm, channel, i, some...), some...);
    });
}

template <class Wide, Storage storage>
void gradient_sums_of_pixels(BatchNorm norm, std::int64_t piece) {
  const std::int64_t width = norm.channels;
  float* const sum = norm.sums + piece * 2 * width;
  float* const products = sum + width;
  clear(sum, 2 * width);
  by_four(pixels_of(norm, piece), [&]<int n>(Count<n>, std::int64_t pixel) {
    each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
      const auto channel = channels_at(norm, as, c, some...);
      decltype(as) g[n], product[n];
      for (int k = 0; k < n; ++k) {
        const std::int64_t i = (pixel + k) * width + c;
        const auto x = get<storage>(as, norm.input, i, some...);
        g[k] = gradient_at<storage>(norm, channel, x, i, some...);
        product[k] = g[k] * (x - channel.mean);
        if (norm.add_gradient) put<storage>(norm.add_gradient, i, g[k], some...);
      }
      add_float(sum, c, sum_of(g), some...);
      add_float(products, c, sum_of(product), some...);
    });
  });
}

template <class Wide, Storage storage>
void backward_of_pixels(BatchNorm norm, std::int64_t piece) {
  const std::int64_t width = norm.channels;
  const Pixels range = pixels_of(norm, piece);
  for (std::int64_t pixel = range.begin; pixel < range.end; ++pixel)
    each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
      const std::int64_t i = pixel * width + c;
      const auto channel = channels_at(norm, as, c, some...);
      put_input_gradient<storage>(norm, channel, corrections_at(norm, as, c, some...),
                                  kept_gradient_at<storage>(norm, channel, i, some...), i, some...);
    });
}

// ---- Channels last, with max pooling ----

/// The places of a window of one dimension that lie within the input: [begin, end) of its size, and
/// the input's index of place 0.
struct Places {
  std::int64_t begin, end, origin;
};
inline Places places_of(const BatchNorm& norm, int dimension, std::int64_t window) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t length = dimension == 0 ? norm.height : norm.width;
  const std::int64_t origin = window * pool.stride[dimension] - pool.padding[dimension];
  return {greater(0, -origin), lesser(pool.size[dimension], length - origin), origin};
}

/// The windows of one dimension that hold an index of the input: [begin, end).
struct Windows {
  std::int64_t begin, end;
};
inline Windows windows_of(const PoolWindows& pool, int dimension, std::int64_t index) {
  const std::int64_t at = index + pool.padding[dimension], stride = pool.stride[dimension];
  const std::int64_t before = at - pool.size[dimension];  // the last origin that is too low
  const std::int64_t count = dimension == 0 ? pool.height : pool.width;
  return {before < 0 ? 0 : before / stride + 1, lesser(count, at / stride + 1)};
}

/// Calls act(place, pixel) for the places of a window within image `image`, row by row.
template <class Act>
inline void each_place(const BatchNorm& norm, std::int64_t image, const Places& rows,
                       const Places& columns, Act act) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::int64_t line = (image * norm.height + rows.origin + r) * norm.width + columns.origin;
    for (std::int64_t k = columns.begin; k < columns.end; ++k)
      act(static_cast<float>(r * norm.pool.size[1] + k), line + k);
  }
}

template <class Wide, Storage storage>
void pooled_forward_of_line(BatchNorm norm, std::int64_t piece) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t width = norm.channels, image = piece / pool.height;
  const Places rows = places_of(norm, 0, piece % pool.height);
  for (std::int64_t w = 0; w < pool.width; ++w) {
    const Places columns = places_of(norm, 1, w);
    const auto first = static_cast<float>(rows.begin * pool.size[1] + columns.begin);
    each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
      using V = decltype(as);
      const auto channel = channels_at(norm, as, c, some...);
      Greatest<V> greatest{V(-__builtin_inff()), V(first)};
      each_place(norm, image, rows, columns, [&](float place, std::int64_t pixel) {
        const V x = get<storage>(as, norm.input, pixel * width + c, some...);
        greatest.meet(rounded<storage>(channel.normalised(x)), place);
      });
      const std::int64_t i = (piece * pool.width + w) * width + c;
      const V y = norm.relu ? rectified(greatest.value) : greatest.value;
      put<storage>(norm.output, i, y, some...);
      if (!norm.chosen) return;
      const V none(kNoPlace);
      put_byte(norm.chosen, i,
               norm.relu ? select_not_above(y, V(0.0f), none, greatest.place) : greatest.place,
               some...);
    });
  }
}

template <class Wide, Storage storage>
void pooled_gradient_sums(BatchNorm norm, std::int64_t piece) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t width = norm.channels, lines = norm.images * pool.height;
  float* const sum = norm.sums + piece * 2 * width;
  float* const products = sum + width;
  clear(sum, 2 * width);
  const std::int64_t begin = piece * lines_of_piece(norm);
  const std::int64_t end = lesser(lines, begin + lines_of_piece(norm));
  for (std::int64_t line = begin; line < end; ++line) {
    const Places rows = places_of(norm, 0, line % pool.height);
    for (std::int64_t w = 0; w < pool.width; ++w) {
      const Places columns = places_of(norm, 1, w);
      each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
        using V = decltype(as);
        const std::int64_t i = (line * pool.width + w) * width + c;
        const V chosen = get_byte(as, norm.chosen, i, some...);
        const V mean = get_float(as, norm.mean, c, some...);
        const V g = select_equal(chosen, V(kNoPlace), V(0.0f),
                                 get<storage>(as, norm.output_gradient, i, some...));
        V x = mean;
        each_place(norm, line / pool.height, rows, columns, [&](float place, std::int64_t pixel) {
          x = select_equal(chosen, V(place),
                           get<storage>(as, norm.input, pixel * width + c, some...), x);
        });
        add_float(sum, c, g, some...);
        add_float(products, c, g * (x - mean), some...);
      });
    }
  }
}

template <class Wide, Storage storage>
void pooled_backward_of_line(BatchNorm norm, std::int64_t piece) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t width = norm.channels, image = piece / norm.height, h = piece % norm.height;
  const Windows rows = windows_of(pool, 0, h);
  for (std::int64_t w = 0; w < norm.width; ++w) {
    const Windows columns = windows_of(pool, 1, w);
    each<Wide>(width, [&](auto as, std::int64_t c, auto... some) {
      using V = decltype(as);
      V g(0.0f);
      for (std::int64_t a = rows.begin; a < rows.end; ++a)
        for (std::int64_t b = columns.begin; b < columns.end; ++b) {
          const std::int64_t r = h + pool.padding[0] - a * pool.stride[0];
          const std::int64_t k = w + pool.padding[1] - b * pool.stride[1];
          const std::int64_t i = ((image * pool.height + a) * pool.width + b) * width + c;
          g = g + select_equal(get_byte(as, norm.chosen, i, some...),
                               V(static_cast<float>(r * pool.size[1] + k)),
                               get<storage>(as, norm.output_gradient, i, some...), V(0.0f));
        }
      put_input_gradient<storage>(norm, channels_at(norm, as, c, some...),
                                  corrections_at(norm, as, c, some...), g,
                                  (piece * norm.width + w) * width + c, some...);
    });
  }
}

// ---- Planes: channels before height and width ----

struct Plane {
  std::int64_t image, channel, begin, pixels;
};
inline Plane plane_of(const BatchNorm& norm, std::int64_t piece) {
  const std::int64_t n = norm.height * norm.width;
  return {piece / norm.channels, piece % norm.channels, piece * n, n};
}

template <class V>
struct Two {
  V a, b;
};

/// Two sums over a plane, of what act(V(), i[, count]) gives for its elements.
template <class Wide, class Act>
inline void sum_plane(const Plane& plane, float* first, float* second, Act act) {
  constexpr std::int64_t kVectors = kLanes / kWidthOf<Wide>;
  Wide sums[2][kVectors];
  for (auto& of_one : sums)
    for (Wide& sum : of_one) sum = Wide(0.0f);
  std::int64_t whole = 0;
  for (; whole + kLanes <= plane.pixels; whole += kLanes)
    for (std::int64_t k = 0; k < kVectors; ++k) {
      const Two<Wide> two = act(Wide(0.0f), plane.begin + whole + k * kWidthOf<Wide>);
      sums[0][k] = sums[0][k] + two.a;
      sums[1][k] = sums[1][k] + two.b;
    }
  float lanes[2][kLanes], more[2][kLanes] = {};
  for (int s = 0; s < 2; ++s)
    for (std::int64_t k = 0; k < kVectors; ++k) put_float(lanes[s], k * kWidthOf<Wide>, sums[s][k]);
  const std::int64_t left = plane.pixels - whole;
  each<Wide>(left, [&](auto as, std::int64_t l, auto... some) {
    const Two<Wide> two = act(as, plane.begin + whole + l, some...);
    put_float(more[0], l, two.a);
    put_float(more[1], l, two.b);
  });
  for (int s = 0; s < 2; ++s) {
    for (std::int64_t l = 0; l < left; ++l) lanes[s][l] += more[s][l];
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lanes[s][l] += lanes[s][l + half];
  }
  *first = lanes[0][0];
  *second = lanes[1][0];
}

template <class Wide, Storage storage>
void statistics_of_plane(BatchNorm norm, std::int64_t piece) {
  const Plane plane = plane_of(norm, piece);
  float* const sums = norm.sums + plane.image * 3 * norm.channels + plane.channel;
  float* const near = sums;
  each<Wide>(1, [&](auto as, std::int64_t, auto... some) {
    put_float(near, 0, if_finite(get<storage>(as, norm.input, plane.begin, some...)), some...);
  });
  sum_plane<Wide>(plane, sums + norm.channels, sums + 2 * norm.channels,
                  [&](auto as, std::int64_t i, auto... some) {
                    using V = decltype(as);
                    const V d = get<storage>(as, norm.input, i, some...) - V(*near);
                    return Two<V>{d, d * d};
                  });
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
  sum_plane<Wide>(plane, sums, sums + norm.channels, [&](auto as, std::int64_t i, auto... some) {
    using V = decltype(as);
    const auto channel = channel_of<V>(norm, plane.channel);
    const V x = get<storage>(as, norm.input, i, some...);
    const V g = gradient_at<storage>(norm, channel, x, i, some...);
    if (norm.add_gradient) put<storage>(norm.add_gradient, i, g, some...);
    return Two<V>{g, g * (x - channel.mean)};
  });
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

template <class Wide, Storage storage>
Piece piece_of(const BatchNorm& norm, BatchNormPass pass) {
  if (norm.channels_last && norm.pool.any()) {
    if (pass == BatchNormPass::forward) return pooled_forward_of_line<Wide, storage>;
    if (pass == BatchNormPass::gradient_sums) return pooled_gradient_sums<Wide, storage>;
    if (pass == BatchNormPass::backward) return pooled_backward_of_line<Wide, storage>;
  }
  switch (pass) {
    case BatchNormPass::statistics:
      return norm.channels_last ? statistics_of_pixels<Wide, storage>
                                : statistics_of_plane<Wide, storage>;
    case BatchNormPass::forward:
      return norm.channels_last ? forward_of_pixels<Wide, storage>
                                : forward_of_plane<Wide, storage>;
    case BatchNormPass::gradient_sums:
      return norm.channels_last ? gradient_sums_of_pixels<Wide, storage>
                                : gradient_sums_of_plane<Wide, storage>;
    default:
      return norm.channels_last ? backward_of_pixels<Wide, storage>
                                : backward_of_plane<Wide, storage>;
  }
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

#pragma once

#include <cstdint>

#include "demi/kernels/batch_norm_elements.h"
#include "demi/kernels/batch_norm_pieces.h"

// The pieces of batch_norm.h's passes with channels last: a thread of a CPU computes all channels
// of a piece, one of a device a channel. Included as batch_norm_elements.h.
//
// The order of sums, the same everywhere: of each channel, groups of four pixels as
// (a + b) + (c + d), one group after the other, then the pixels that are left.
namespace demi::kernels {
namespace {

/// Channels [begin, end) of a piece.
struct Channels {
  std::int64_t begin, end;
};

/// body(V(), c) for each full vector of channels, body(V(), c, count) for the rest.
template <class Wide, class Body>
DEMI_HOST_DEVICE void each_channel(Channels of, Body body) {
  std::int64_t c = of.begin;
  for (; c + kWidthOf<Wide> <= of.end; c += kWidthOf<Wide>) body(Wide(0.0f), c);
  constexpr bool kHasRest = kWidthOf<Wide> != 1;
  if constexpr (kHasRest)
    if (c < of.end) body(Wide(0.0f), c, static_cast<int>(of.end - c));
}

template <class V, class... Some>
DEMI_HOST_DEVICE void add_to(float* array, std::int64_t i, V x, Some... some) {
  put_float(array, i, get_float(V(0.0f), array, i, some...) + x, some...);
}

struct Pixels {
  std::int64_t begin, end;
};
DEMI_HOST_DEVICE Pixels pixels_of(const BatchNorm& norm, std::int64_t piece) {
  const std::int64_t begin = piece * pixels_of_piece(norm);
  return {begin, lesser(begin + pixels_of_piece(norm), pixels(norm))};
}

template <int number>
struct Count {};

/// Calls sum_up(Count<n>(), pixel) for n = 4 and then 1 consecutive pixels.
template <class SumUp>
DEMI_HOST_DEVICE void by_four(Pixels range, SumUp sum_up) {
  std::int64_t pixel = range.begin;
  for (; pixel + 4 <= range.end; pixel += 4) sum_up(Count<4>(), pixel);
  for (; pixel < range.end; ++pixel) sum_up(Count<1>(), pixel);
}

template <class V>
DEMI_HOST_DEVICE V sum_of(const V (&of)[1]) {
  return of[0];
}
template <class V>
DEMI_HOST_DEVICE V sum_of(const V (&of)[4]) {
  return (of[0] + of[1]) + (of[2] + of[3]);
}

template <class Wide>
DEMI_HOST_DEVICE void clear_sums(Channels of, float* first, float* second) {
  each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
    put_float(first, c, as, some...);
    put_float(second, c, as, some...);
  });
}

/// Two sums over pixels of what terms(a, b, pixel, c[, count]) puts into a and b, arrays of one
/// vector for each of as many pixels.
template <class Wide, class Terms>
DEMI_HOST_DEVICE void sum_pixels(Channels of, Pixels range, float* first, float* second,
                                 Terms terms) {
  clear_sums<Wide>(of, first, second);
  by_four(range, [&]<int n>(Count<n>, std::int64_t pixel) {
    each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
      decltype(as) a[n], b[n];
      terms(a, b, pixel, c, some...);
      add_to(first, c, sum_of(a), some...);
      add_to(second, c, sum_of(b), some...);
    });
  });
}

template <class Wide, Storage storage>
DEMI_HOST_DEVICE void statistics_of_pixels(BatchNorm norm, std::int64_t piece, Channels of) {
  const std::int64_t width = norm.channels;
  float* const near = norm.sums + piece * 3 * width;
  const Pixels range = pixels_of(norm, piece);
  each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
    const auto x = get<storage>(as, norm.input, range.begin * width + c, some...);
    put_float(near, c, if_finite(x), some...);
  });
  sum_pixels<Wide>(of, range, near + width, near + 2 * width,
                   [&]<class V, int n>(V(&d)[n], V(&square)[n], std::int64_t pixel, std::int64_t c,
                                       auto... some) {
                     const V as(0.0f), first = get_float(as, near, c, some...);
                     for (int k = 0; k < n; ++k) {
                       const std::int64_t i = (pixel + k) * width + c;
                       d[k] = get<storage>(as, norm.input, i, some...) - first;
                       square[k] = d[k] * d[k];
                     }
                   });
}

template <class Wide, Storage storage>
DEMI_HOST_DEVICE void forward_of_pixels(BatchNorm norm, std::int64_t piece, Channels of) {
  const std::int64_t width = norm.channels;
  const Pixels range = pixels_of(norm, piece);
  for (std::int64_t pixel = range.begin; pixel < range.end; ++pixel)
    each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
      const std::int64_t i = pixel * width + c;
      const auto channel = channels_at(norm, as, c, some...);
      put<storage>(norm.output, i, output_at<storage>(norm, channel, i, some...), some...);
    });
}

template <class Wide, Storage storage>
DEMI_HOST_DEVICE void gradient_sums_of_pixels(BatchNorm norm, std::int64_t piece, Channels of) {
  const std::int64_t width = norm.channels;
  const bool writes = norm.add_gradient && !norm.pool.any();
  float* const sum = norm.sums + piece * 2 * width;
  sum_pixels<Wide>(of, pixels_of(norm, piece), sum, sum + width,
                   [&]<class V, int n>(V(&g)[n], V(&product)[n], std::int64_t pixel, std::int64_t c,
                                       auto... some) {
                     const V as(0.0f);
                     const Channel<V> channel = channels_at(norm, as, c, some...);
                     for (int k = 0; k < n; ++k) {
                       const std::int64_t i = (pixel + k) * width + c;
                       const V x = get<storage>(as, norm.input, i, some...);
                       g[k] = gradient_at<storage>(norm, channel, x, i, some...);
                       product[k] = g[k] * (x - channel.mean);
                       if (writes) put<storage>(norm.add_gradient, i, g[k], some...);
                     }
                   });
}

template <class Wide, Storage storage>
DEMI_HOST_DEVICE void backward_of_pixels(BatchNorm norm, std::int64_t piece, Channels of) {
  const std::int64_t width = norm.channels;
  const Pixels range = pixels_of(norm, piece);
  for (std::int64_t pixel = range.begin; pixel < range.end; ++pixel)
    each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
      const std::int64_t i = pixel * width + c;
      const auto channel = channels_at(norm, as, c, some...);
      put_input_gradient<storage>(norm, channel, corrections_at(norm, as, c, some...),
                                  kept_gradient_at<storage>(norm, channel, i, some...), i, some...);
    });
}

// ---- With max pooling ----

/// The places of a window of one dimension that lie within the input: [begin, end) of its size, and
/// the input's index of place 0.
struct Places {
  std::int64_t begin, end, origin;
};
DEMI_HOST_DEVICE Places places_of(const BatchNorm& norm, int dimension, std::int64_t window) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t length = dimension == 0 ? norm.height : norm.width;
  const std::int64_t origin = window * pool.stride[dimension] - pool.padding[dimension];
  return {greater(0, -origin), lesser(pool.size[dimension], length - origin), origin};
}

/// The windows of one dimension that hold an index of the input: [begin, end).
struct Windows {
  std::int64_t begin, end;
};
DEMI_HOST_DEVICE Windows windows_of(const PoolWindows& pool, int dimension, std::int64_t index) {
  const std::int64_t at = index + pool.padding[dimension], stride = pool.stride[dimension];
  const std::int64_t before = at - pool.size[dimension];  // the last origin that is too low
  const std::int64_t count = dimension == 0 ? pool.height : pool.width;
  return {before < 0 ? 0 : before / stride + 1, lesser(count, at / stride + 1)};
}

/// Calls act(place, pixel) for the places of a window within image `image`, row by row.
template <class Act>
DEMI_HOST_DEVICE void each_place(const BatchNorm& norm, std::int64_t image, const Places& rows,
                                 const Places& columns, Act act) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::int64_t line = (image * norm.height + rows.origin + r) * norm.width + columns.origin;
    for (std::int64_t k = columns.begin; k < columns.end; ++k)
      act(static_cast<float>(r * norm.pool.size[1] + k), line + k);
  }
}

template <class Wide, Storage storage>
DEMI_HOST_DEVICE void pooled_forward_of_line(BatchNorm norm, std::int64_t piece, Channels of) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t width = norm.channels, image = piece / pool.height;
  const Places rows = places_of(norm, 0, piece % pool.height);
  for (std::int64_t w = 0; w < pool.width; ++w) {
    const Places columns = places_of(norm, 1, w);
    const auto first = static_cast<float>(rows.begin * pool.size[1] + columns.begin);
    each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
      using V = decltype(as);
      const auto channel = channels_at(norm, as, c, some...);
      Greatest<V> greatest{V(-__builtin_inff()), V(first)};
      each_place(norm, image, rows, columns, [&](float place, std::int64_t pixel) {
        const V v = value_at<storage>(norm, channel, pixel * width + c, some...);
        greatest.meet(rounded<storage>(v), place);
      });
      put_greatest<storage>(norm, greatest, (piece * pool.width + w) * width + c, some...);
    });
  }
}

/// The gradient that windows of a place of the input give it: those of `rows` and `columns`, which
/// hold (h, w) of an image.
template <Storage storage, class V, class... Some>
DEMI_HOST_DEVICE V gradient_of_windows(const BatchNorm& norm, std::int64_t image, std::int64_t h,
                                       std::int64_t w, const Windows& rows, const Windows& columns,
                                       V as, std::int64_t c, Some... some) {
  const PoolWindows& pool = norm.pool;
  V g(0.0f);
  for (std::int64_t a = rows.begin; a < rows.end; ++a)
    for (std::int64_t b = columns.begin; b < columns.end; ++b) {
      const std::int64_t r = h + pool.padding[0] - a * pool.stride[0];
      const std::int64_t k = w + pool.padding[1] - b * pool.stride[1];
      const std::int64_t i = ((image * pool.height + a) * pool.width + b) * norm.channels + c;
      g = g + select_equal(get_byte(as, norm.chosen, i, some...),
                           V(static_cast<float>(r * pool.size[1] + k)),
                           get<storage>(as, norm.output_gradient, i, some...), V(0.0f));
    }
  return g;
}

/// Writes g for the pixels of a piece.
template <class Wide, Storage storage>
DEMI_HOST_DEVICE void pooled_add_gradient(const BatchNorm& norm, std::int64_t piece, Channels of) {
  const Pixels range = pixels_of(norm, piece);
  for (std::int64_t pixel = range.begin; pixel < range.end; ++pixel) {
    const std::int64_t line = pixel / norm.width, w = pixel % norm.width;
    const std::int64_t image = line / norm.height, h = line % norm.height;
    const Windows rows = windows_of(norm.pool, 0, h), columns = windows_of(norm.pool, 1, w);
    each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
      put<storage>(norm.add_gradient, pixel * norm.channels + c,
                   gradient_of_windows<storage>(norm, image, h, w, rows, columns, as, c, some...),
                   some...);
    });
  }
}

template <class Wide, Storage storage>
DEMI_HOST_DEVICE void pooled_gradient_sums(BatchNorm norm, std::int64_t piece, Channels of) {
  const PoolWindows& pool = norm.pool;
  const std::int64_t width = norm.channels, lines = norm.images * pool.height;
  float* const sum = norm.sums + piece * 2 * width;
  float* const products = sum + width;
  clear_sums<Wide>(of, sum, products);
  const std::int64_t begin = piece * lines_of_piece(norm);
  const std::int64_t end = lesser(lines, begin + lines_of_piece(norm));
  for (std::int64_t line = begin; line < end; ++line) {
    const Places rows = places_of(norm, 0, line % pool.height);
    for (std::int64_t w = 0; w < pool.width; ++w) {
      const Places columns = places_of(norm, 1, w);
      each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
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
        add_to(sum, c, g, some...);
        add_to(products, c, g * (x - mean), some...);
      });
    }
  }
}

template <class Wide, Storage storage>
DEMI_HOST_DEVICE void pooled_backward_of_line(BatchNorm norm, std::int64_t piece, Channels of) {
  const std::int64_t image = piece / norm.height, h = piece % norm.height;
  const Windows rows = windows_of(norm.pool, 0, h);
  for (std::int64_t w = 0; w < norm.width; ++w) {
    const Windows columns = windows_of(norm.pool, 1, w);
    each_channel<Wide>(of, [&](auto as, std::int64_t c, auto... some) {
      put_input_gradient<storage>(
          norm, channels_at(norm, as, c, some...), corrections_at(norm, as, c, some...),
          gradient_of_windows<storage>(norm, image, h, w, rows, columns, as, c, some...),
          (piece * norm.width + w) * norm.channels + c, some...);
    });
  }
}

}  // namespace
}  // namespace demi::kernels

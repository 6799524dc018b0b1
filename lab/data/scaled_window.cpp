#include "lab/data/scaled_window.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "demi/data/random_bits.h"

namespace demi::data {
namespace {

constexpr int kTries = 10;
constexpr double kNarrowest = 3.0 / 4, kWidest = 4.0 / 3;

double uniform(uint32_t bits, double low, double high) {
  return low + (high - low) * (static_cast<double>(bits) * 0x1p-32);
}

// All of one side, and of the other what keeps the ratio in its range.
Window middle_window(int64_t height, int64_t width) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  Window window{.top = 0, .left = 0, .height = height, .width = width};
  if (ratio < kNarrowest)
    window.height = std::lround(static_cast<double>(width) / kNarrowest);
  else if (ratio > kWidest)
    window.width = std::lround(static_cast<double>(height) * kWidest);
  window.top = (height - window.height) / 2;
  window.left = (width - window.width) / 2;
  return window;
}

/// Half of an even number, or of an odd one the even of the two nearest: Python's round(n / 2).
int64_t half_to_even(int64_t n) {
  const int64_t half = n / 2;
  return n % 2 == 1 && half % 2 == 1 ? half + 1 : half;
}

/// Pixels [first, first + count) of a line, which are scaled to `scaled`; of these [skipped,
/// skipped + kept) are wanted.
struct Stretch {
  int64_t first, count, scaled, skipped, kept;
};

/// The part of a line of `in` pixels, scaled to `out`, that the pixels [first, first + kept) need:
/// whole periods, after which pixels of both begin at the same place again, so that weights repeat,
/// and around them the pixels that weights reach.
Stretch stretch_of(int64_t in, int64_t out, int64_t first, int64_t kept) {
  const int64_t periods = std::gcd(in, out), from = in / periods, to = out / periods;
  const int64_t reach = 3 + (in + out - 1) / out;  // pixels of `in`
  const int64_t around = (reach + from - 1) / from;
  const int64_t begin = std::max<int64_t>(0, first / to - around),
                end = std::min(periods, (first + kept + to - 1) / to + around);
  return {.first = begin * from,
          .count = (end - begin) * from,
          .scaled = (end - begin) * to,
          .skipped = first - begin * to,
          .kept = kept};
}

at::Tensor scaled_lines(const at::Tensor& planes, int64_t dim, const Stretch& line) {
  std::vector<int64_t> sizes{planes.size(2), planes.size(3)};
  sizes[static_cast<std::size_t>(dim - 2)] = line.scaled;
  return at::_upsample_bilinear2d_aa(planes.contiguous(c10::MemoryFormat::ChannelsLast), sizes,
                                     /*align_corners=*/false)
      .narrow(dim, line.skipped, line.kept);
}

/// Scales (1, 3, H, W) along one dimension; several lines at once, as far as 64 MiB hold them.
at::Tensor scaled_along(const at::Tensor& planes, int64_t dim, const Stretch& line) {
  constexpr int64_t kMostBytes = int64_t{1} << 26;
  const at::Tensor needed = planes.narrow(dim, line.first, line.count);
  if (line.scaled == line.count) return needed.narrow(dim, line.skipped, line.kept);
  const int64_t across = dim == 2 ? 3 : 2, lines = needed.size(across);
  const int64_t some = std::max<int64_t>(1, kMostBytes / (3 * line.scaled));
  std::vector<at::Tensor> parts;
  for (int64_t at = 0; at < lines; at += some)
    parts.push_back(scaled_lines(needed.narrow(across, at, std::min(some, lines - at)), dim, line));
  return parts.size() == 1 ? parts.front() : at::cat(parts, across);
}

}  // namespace

Window random_window(int64_t height, int64_t width, double least_area, uint64_t seed, int64_t epoch,
                     int64_t item) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int i = 0; i < kTries; ++i) {
    const auto bits = random_bits(seed, epoch, item * kTries + i, Purpose::window);
    const double share = area * uniform(bits[0], least_area, 1);
    const double ratio = std::exp(uniform(bits[1], std::log(kNarrowest), std::log(kWidest)));
    const int64_t columns = std::lround(std::sqrt(share * ratio));
    const int64_t rows = std::lround(std::sqrt(share / ratio));
    if (rows < 1 || rows > height || columns < 1 || columns > width) continue;
    return {.top = bounded(bits[2], height - rows + 1),
            .left = bounded(bits[3], width - columns + 1),
            .height = rows,
            .width = columns};
  }
  return middle_window(height, width);
}

Middle middle_of(int64_t height, int64_t width, int64_t size) {
  const int64_t scaled = std::lround(static_cast<double>(size) * 256 / 224);
  const int64_t least = std::min(height, width);
  const int64_t rows = scaled * height / least, columns = scaled * width / least;  // truncated
  return {.height = rows,
          .width = columns,
          .window = {.top = half_to_even(rows - size),
                     .left = half_to_even(columns - size),
                     .height = size,
                     .width = size}};
}

at::Tensor resized(const at::Tensor& picture, int64_t height, int64_t width) {
  const at::Tensor planes = picture.permute({2, 0, 1}).unsqueeze(0);
  if (picture.size(0) == height && picture.size(1) == width) return planes;
  return at::_upsample_bilinear2d_aa(planes, {height, width}, /*align_corners=*/false);
}

at::Tensor middle_picture(const at::Tensor& picture, int64_t size) {
  const Middle middle = middle_of(picture.size(0), picture.size(1), size);
  const Window& w = middle.window;
  return scaled_window(picture, middle.height, middle.width, w);
}

// Rows first, then columns, each rounded to uint8: so LibTorch's operator does both at once.
at::Tensor scaled_window(const at::Tensor& picture, int64_t height, int64_t width,
                         const Window& window) {
  constexpr int64_t kWhole = int64_t{1} << 24;  // pixels
  if (height * width <= kWhole)
    return resized(picture, height, width)
        .narrow(2, window.top, window.height)
        .narrow(3, window.left, window.width);
  const at::Tensor planes = picture.permute({2, 0, 1}).unsqueeze(0);
  const Stretch column = stretch_of(picture.size(0), height, window.top, window.height);
  const Stretch row = stretch_of(picture.size(1), width, window.left, window.width);
  // Rows that no column needs are not scaled.
  const at::Tensor rows = scaled_along(planes.narrow(2, column.first, column.count), 3, row);
  Stretch rest = column;
  rest.first = 0;
  return scaled_along(rows, 2, rest);
}

}  // namespace demi::data

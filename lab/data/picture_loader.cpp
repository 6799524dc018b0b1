#include "lab/data/picture_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "demi/core/error.h"
#include "demi/data/random_bits.h"
#include "lab/data/damage.h"
#include "lab/data/picture.h"
#include "lab/data/scaled_window.h"

namespace demi::data {
namespace {

constexpr int kTries = 10;
constexpr double kNarrowest = 3.0 / 4, kWidest = 4.0 / 3;

PictureLoaderOptions checked(PictureLoaderOptions options) {
  constexpr const char* kWhere = "data.PictureLoader";
  check_normalisation(kWhere, options.mean, options.std, 3);
  const auto require = [](bool right, std::string_view what, const std::string& seen,
                          std::string_view accepted) {
    if (!right) refuse({.where = kWhere, .what = what, .seen = seen, .accepted = accepted});
  };
  require(options.size >= 1, "size is too small", fmt::to_string(options.size), ">= 1");
  require(options.least_area > 0 && options.least_area <= 1, "least_area is out of range",
          fmt::to_string(options.least_area), "above 0, up to 1");
  return options;
}

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

PictureLoader::PictureLoader(PictureFolder folder, PictureLoaderOptions options)
    : folder_(std::move(folder)),
      options_(checked(std::move(options))),
      order_(static_cast<int64_t>(folder_.files.size()), options_.order),
      normalise_(options_.mean, options_.std, 3, options_.device) {
  folder_.labels = folder_.labels.to(options_.device);
}

// (1, 3, size, size) uint8
at::Tensor PictureLoader::picture(int64_t file, int64_t epoch, int64_t item) const {
  // Where one is damaged others may be: each would end another run.
  const at::Tensor whole =
      read_picture(folder_.files[static_cast<std::size_t>(file)], [](Damage damage) {
        const std::string advice =
            std::string(damage.advice) + "; demi data check FOLDER lists all that are damaged";
        damage.advice = advice;
        report_damage(damage);
      });
  const uint64_t seed = options_.order.seed;
  at::Tensor result;
  if (options_.least_area < 1) {
    const Window w =
        random_window(whole.size(0), whole.size(1), options_.least_area, seed, epoch, item);
    result = resized(whole.narrow(0, w.top, w.height).narrow(1, w.left, w.width), options_.size,
                     options_.size);
  } else {
    result = middle_picture(whole, options_.size);
  }
  const bool flip =
      options_.horizontal_flip && (random_bits(seed, epoch, item, Purpose::augment)[2] & 1) != 0;
  return flip ? result.flip(3) : result;
}

Batch PictureLoader::batch(int64_t epoch, int64_t position) const {
  const at::NoGradGuard no_grad;
  const at::Tensor chosen = order_.indices(epoch, position);
  const int64_t* file = chosen.const_data_ptr<int64_t>();
  const int64_t first = order_.place(position), count = chosen.numel();
  at::Tensor images = at::empty({count, 3, options_.size, options_.size}, at::kByte,
                                c10::MemoryFormat::ChannelsLast);
  const bool infers = c10::InferenceMode::is_enabled();  // which a thread does not inherit
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode mode(infers);
    const at::NoGradGuard no_grad_here;
    for (int64_t i = begin; i < end; ++i) {
      images.narrow(0, i, 1).copy_(picture(file[i], epoch, first + i));
    }
  });
  return {.input = normalise_(images.to(options_.device), c10::MemoryFormat::ChannelsLast),
          .target = folder_.labels.index_select(0, chosen.to(options_.device)),
          .lengths = {}};
}

}  // namespace demi::data

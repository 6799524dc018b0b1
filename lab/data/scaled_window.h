#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::data {

/// A part of a picture, in pixels.
struct Window {
  int64_t top, left, height, width;
};

/// A window of a random share of the area, `least_area` to 1, and a ratio of width to height
/// between 3/4 and 4/3, anywhere; where ten tries find none that fits, the largest one in the
/// middle with such a ratio (Szegedy et al. 2015, "Going deeper with convolutions", section 6;
/// torchvision's RandomResizedCrop). A pure function.
DEMI_API Window random_window(int64_t height, int64_t width, double least_area, uint64_t seed,
                              int64_t epoch, int64_t item);

/// A picture that is scaled, and the part of it that is kept, in pixels of the scaled one.
struct Middle {
  int64_t height, width;
  Window window;
};

/// The part of a picture that the usual test on ImageNet uses, for 224: torchvision's Resize(256)
/// and CenterCrop(224), to the pixel; for other sizes Resize(size x 256 / 224, rounded). A pure
/// function.
DEMI_API Middle middle_of(int64_t height, int64_t width, int64_t size);

/// A picture (H, W, 3) uint8, scaled bilinearly with antialiasing: (1, 3, height, width) uint8.
at::Tensor resized(const at::Tensor& picture, int64_t height, int64_t width);

/// The picture's part by middle_of(), (1, 3, size, size) uint8.
at::Tensor middle_picture(const at::Tensor& picture, int64_t size);

/// The window of a picture (H, W, 3) uint8 that is scaled to (height, width) as resized() does: (1,
/// 3, window.height, window.width) uint8. If there are more than 2^24 scaled pixels, only those
/// that the window needs are computed, so that a long, narrow picture takes no memory by its
/// length. The result is the same bit for bit if LibTorch has AVX2, else to 1 of 255, by the
/// rounding of places in FP32.
DEMI_API at::Tensor scaled_window(const at::Tensor& picture, int64_t height, int64_t width,
                                  const Window& window);

}  // namespace demi::data

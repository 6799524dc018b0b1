#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/core/export.h"
#include "lab/data/picture_loader.h"

namespace demi::data {

/// The window of a picture (H, W, 3) uint8 that is scaled to (height, width) as resized() does: (1,
/// 3, window.height, window.width) uint8. Of more than 2^24 scaled pixels those that the window
/// does not need are not computed, so that a long, narrow picture takes no memory by its length:
/// bit for bit where LibTorch has AVX2, else to 1 of 255, by the rounding of places in FP32.
DEMI_API at::Tensor scaled_window(const at::Tensor& picture, int64_t height, int64_t width,
                                  const Window& window);

}  // namespace demi::data

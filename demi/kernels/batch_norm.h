#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/storage.h"

namespace demi::kernels {

/// Windows of a max pooling over height and width, without dilation. A window has at most 255
/// places, counted row by row; with channels before height and width sizes and strides are
/// kLongestWindow at most. Sizes and strides of 1 alone: no pooling.
struct PoolWindows {
  std::int64_t size[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0};
  std::int64_t height = 0, width = 0;  // of the result

  DEMI_HOST_DEVICE bool any() const {
    return size[0] > 1 || size[1] > 1 || stride[0] > 1 || stride[1] > 1;
  }
};

/// The largest size and stride of PoolWindows with channels before height and width.
inline constexpr std::int64_t kLongestWindow = 8;

/// `BatchNorm::chosen` of a window whose result ReLU has set to 0: none of its places has a
/// gradient.
inline constexpr std::uint8_t kNoPlace = 255;

/// Batch normalisation of images (Ioffe and Szegedy 2015, algorithm 1) with what usually follows
/// it, a pass over memory for each of
///
///     statistics       blocks of sums and squares of x
///     forward          v = (x - mean) scale + shift + add, rounded to `storage`;
///                      y = the greatest max(v, 0) of each window
///     gradient_sums    g = dy where y > 0 (and where y is NaN), at the place that a window chose;
///                      blocks of sums of g and of g (x - mean)
///     backward         dx = ((g - mean_gradient) - (x - mean) slope) scale
///
/// Arithmetic is FP32. Arrays are dense, in the layout that channels_last says; all that are not
/// float or bytes are of `storage`. Among equals a window chooses its first place, and of several
/// NaN the last, as torch.max_pool2d does. Behind `add` a pooling's g is rounded to `storage`,
/// since it is the gradient of what was added, too.
struct BatchNorm {
  Storage storage;
  bool channels_last;  // (N, H, W, C), otherwise (N, C, H, W)
  bool relu;
  std::int64_t images, channels, height, width;
  PoolWindows pool;

  const void* input;            // x
  const void* add;              // as x; or null
  const float* mean;            // (C)
  const float* scale;           // (C): weight / deviation
  const float* shift;           // (C): bias
  void* output;                 // y; gradient_sums reads it where there are add_gradient and relu
  std::uint8_t* chosen;         // as y: the place in its window; with pooling alone
  const void* output_gradient;  // dy
  void* add_gradient;           // g, as x, written by gradient_sums; with `add` alone
  const float* mean_gradient;   // (C): mean of g; null for given statistics, with slope
  const float* slope;           // (C): mean of g (x - mean), over the variance
  void* input_gradient;         // dx

  /// (sum_rows(), 3, C) of statistics: a value near the others, the sum of the differences from
  /// it, and of their squares. (sum_rows(), 2, C) of gradient_sums. A row is of at most 512 pixels,
  /// or of an image where channels come first.
  float* sums;
};

/// What the statistics are for. All are (C), FP32, if nothing else is said.
struct ChannelStatistics {
  double eps;           // added to the variance
  double momentum;      // the batch's share in the running statistics
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  float* running_mean;  // null: none. With the batch's statistics both move
  float* running_var;
  float* channels;  // (4, C), written: mean, 1 / deviation, scale and shift
};

/// What the sums of gradients are for.
struct ChannelGradients {
  const float* channels;  // those of ChannelStatistics
  float* corrections;     // (2, C), written: mean_gradient and slope
  float* weight;          // (C), written: its gradient
  float* bias;            // (C), written
};

/// A pass of the four.
enum class BatchNormPass { statistics, forward, gradient_sums, backward };

/// Pieces that a pass consists of, which are independent of each other. How they are shared among
/// threads changes no bit.
DEMI_API std::int64_t pieces_of(const BatchNorm& norm, BatchNormPass pass);

/// Rows of `sums` that a pass writes.
DEMI_API std::int64_t sum_rows(const BatchNorm& norm, BatchNormPass pass);

/// Pixels that row `row` of the statistics sums up.
DEMI_API std::int64_t pixels_of_row(const BatchNorm& norm, std::int64_t row);

}  // namespace demi::kernels

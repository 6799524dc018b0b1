#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/kernels/batch_norm.h"

// What the sums of the kernels' passes say of a batch, in FP64.
namespace demi::batch_norm {

/// Of each channel.
struct Moments {
  std::vector<double> mean, squares;  // squares of the differences from the mean, summed up
  double count;                       // elements of a channel
};

/// Runs the pass over the input.
Moments moments_of(kernels::BatchNorm norm);

/// Of each channel, over all pixels: the sums of g, and of g (x - mean).
struct GradientSums {
  std::vector<double> gradient, product;
};

/// Runs the pass over the gradient.
GradientSums gradient_sums_of(kernels::BatchNorm norm);

/// Runs a pass, its pieces shared among LibTorch's threads.
void run(const kernels::BatchNorm& norm, kernels::BatchNormPass pass);

}  // namespace demi::batch_norm

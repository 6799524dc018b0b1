#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/kernels/batch_norm.h"

// What the sums of the kernels' passes say of a batch, in FP64.
namespace demi::batch_norm {

/// Mean and spread of each channel.
struct Moments {
  std::vector<double> mean, squares;  // squares of the differences from the mean, summed up
  double count;                       // elements of a channel
};

/// Runs the pass over the input.
Moments moments_of(kernels::BatchNorm norm);

/// The sums over all pixels of g, and of g (x - mean), by channel.
struct GradientSums {
  std::vector<double> gradient, product;
};

/// Runs the pass over the gradient.
GradientSums gradient_sums_of(kernels::BatchNorm norm);

/// Runs a pass, its pieces shared among LibTorch's threads.
void run(const kernels::BatchNorm& norm, kernels::BatchNormPass pass);

}  // namespace demi::batch_norm

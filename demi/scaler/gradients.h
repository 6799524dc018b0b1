#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "demi/core/export.h"

namespace torch::optim {
class Optimizer;
}

// Unscaling and checks of the gradients of a torch::optim optimizer by LibTorch's tensor
// operations: any device, any dtype, dense or sparse.
namespace demi::scaler {

/// The gradients of all parameters that have one, as dense tensors that share the gradients'
/// memory. A sparse gradient gives its values; one of fp16 is coalesced first, since the sum of its
/// duplicates may overflow where no term does.
DEMI_API std::vector<at::Tensor> gradient_values(torch::optim::Optimizer& optimizer);

/// The same for norms and magnitudes: those of a sparse gradient whose duplicates are not summed
/// yet are their sums, in memory of their own.
std::vector<at::Tensor> summed_gradient_values(torch::optim::Optimizer& optimizer);

/// Whether any parameter has a gradient.
bool has_gradients(const torch::optim::Optimizer& optimizer);

/// fp32, (), 0 or 1: one for each device that holds a gradient.
using FoundInf =
    std::map<c10::Device, at::Tensor, bool (*)(const c10::Device&, const c10::Device&)>;
DEMI_API FoundInf no_devices();

/// All of them as one, fp32, (), on `device`; undefined if there is none.
at::Tensor joined(const FoundInf& found, c10::Device device);

/// Multiplies each gradient by `inverse_scale`, fp32 (), in place and looks for Inf and NaN,
/// element by element. Does not synchronise. 16-bit gradients are rounded, and may underflow, as
/// anything stored in 16 bits.
DEMI_API FoundInf unscale_and_check(const std::vector<at::Tensor>& gradients,
                                    const at::Tensor& inverse_scale);

/// Greatest magnitude, fp32 (), on the device of the first gradient. NaN if any gradient is.
DEMI_API at::Tensor greatest_magnitude(const std::vector<at::Tensor>& gradients);

/// L2 norm over all, fp32 (), on the device of the first gradient; summed in fp64, so that no
/// square overflows.
DEMI_API at::Tensor total_norm(const std::vector<at::Tensor>& gradients);

}  // namespace demi::scaler

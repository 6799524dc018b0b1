#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/core/export.h"

namespace demi::optim {

/// torch.nn.utils.clip_grad_norm_: multiplies the gradients by min(1, max_norm / (norm + 1e-6)),
/// norm taken over all of them together. Returns the norm before, (), fp32, or fp64
/// if an fp64 gradient belongs to no demi optimizer. Does not synchronise (error_if_nonfinite does,
/// and throws TrainingError for an Inf or NaN).
///
/// For parameters of a demi optimizer the factor is recorded and applied within its next step, to
/// the unscaled gradients. .grad itself stays as it is; Optimizer::unscaled_grad() returns the
/// gradient that the step will use. With a GradScaler call unscale_(optimizer) first, as in
/// PyTorch. So the next step has to be that optimizer's: if another library's steps the parameters
/// while a demi optimizer of them lives, nothing is clipped; destroy that one first, or use
/// torch::nn::utils::clip_grad_norm_. All parameters of one demi optimizer at once cost nothing
/// besides the pass that looks for Inf and NaN. For subsets, several optimizers and other norms the
/// gradients are read once more.
///
/// A parameter that is named twice counts once. The clip belongs to the present gradients: it does
/// not apply to new ones (zero_grad(), another backward).
///
/// max_norm: 0 or more. norm_type: above 0; infinity is the greatest magnitude. Throws UsageError
/// for others, and with error_if_nonfinite TrainingError for a norm that is Inf or NaN.
DEMI_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                    double norm_type = 2.0, bool error_if_nonfinite = false);

/// torch.nn.utils.clip_grad_value_: clamps each gradient to [-clip_value, clip_value]; recorded in
/// the same way. Throws UsageError for a clip_value below 0.
DEMI_API void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace demi::optim

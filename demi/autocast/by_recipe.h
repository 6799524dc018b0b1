#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymIntArrayRef.h>

#include <optional>
#include <string_view>

#include "demi/autocast/call.h"

// Ops with a weight that has a recipe, with LibTorch's own arguments, not cast. nullopt: the weight
// stands in a place where a recipe has no form, and the op runs in the region's dtype.
namespace demi {

using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor linear_by_recipe(const Call& call, const at::Tensor& x, const at::Tensor& weight,
                                const OptionalTensor& bias);
OptionalTensor mm_by_recipe(const Call& call, const at::Tensor& a, const at::Tensor& b);
OptionalTensor addmm_by_recipe(const Call& call, const at::Tensor& addend, const at::Tensor& a,
                               const at::Tensor& b, const at::Scalar& beta,
                               const at::Scalar& alpha);
OptionalTensor matmul_by_recipe(const Call& call, const at::Tensor& a, const at::Tensor& b);

/// conv1d, conv2d and conv3d: `spatial` is 1, 2 or 3.
OptionalTensor conv_by_recipe(const Call& call, int64_t spatial, const at::Tensor& x,
                              const at::Tensor& weight, const OptionalTensor& bias,
                              c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                              c10::SymIntArrayRef dilation, const c10::SymInt& groups);
/// The overloads with padding "same" or "valid".
OptionalTensor conv_padded_by_recipe(const Call& call, int64_t spatial, const at::Tensor& x,
                                     const at::Tensor& weight, const OptionalTensor& bias,
                                     c10::SymIntArrayRef stride, std::string_view padding,
                                     c10::SymIntArrayRef dilation, const c10::SymInt& groups);
/// conv_transpose1d, conv_transpose2d, conv_transpose3d.
OptionalTensor conv_transpose_by_recipe(const Call& call, int64_t spatial, const at::Tensor& x,
                                        const at::Tensor& weight, const OptionalTensor& bias,
                                        c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                        c10::SymIntArrayRef output_padding,
                                        const c10::SymInt& groups, c10::SymIntArrayRef dilation);

}  // namespace demi

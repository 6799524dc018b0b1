#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

#include <optional>

#include "demi/core/export.h"

// LibTorch's matrix products and convolutions, with their own arguments, computed through FP32.
// nullopt: the op declines (through_fp32.h says when), or LibTorch's op refuses the arguments. The
// caller then runs LibTorch's op, which may throw.
namespace demi::products {

using OptionalTensor = std::optional<at::Tensor>;

DEMI_API OptionalTensor linear(const at::Tensor& input, const at::Tensor& weight,
                               const OptionalTensor& bias);
DEMI_API OptionalTensor mm(const at::Tensor& a, const at::Tensor& b);
DEMI_API OptionalTensor bmm(const at::Tensor& a, const at::Tensor& b);
DEMI_API OptionalTensor addmm(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                              const at::Scalar& beta, const at::Scalar& alpha);
DEMI_API OptionalTensor baddbmm(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                                const at::Scalar& beta, const at::Scalar& alpha);
DEMI_API OptionalTensor matmul(const at::Tensor& a, const at::Tensor& b);

/// conv1d, conv2d, conv3d: `spatial` is 1, 2 or 3, because the weight alone does not tell which op
/// was called.
DEMI_API OptionalTensor conv(int64_t spatial, const at::Tensor& input, const at::Tensor& weight,
                             const OptionalTensor& bias, c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                             const c10::SymInt& groups);
/// The overloads with padding "same" or "valid".
DEMI_API OptionalTensor conv_padded(int64_t spatial, const at::Tensor& input,
                                    const at::Tensor& weight, const OptionalTensor& bias,
                                    c10::SymIntArrayRef stride, std::string_view padding,
                                    c10::SymIntArrayRef dilation, const c10::SymInt& groups);
/// conv_transpose1d, conv_transpose2d, conv_transpose3d.
DEMI_API OptionalTensor conv_transpose(int64_t spatial, const at::Tensor& input,
                                       const at::Tensor& weight, const OptionalTensor& bias,
                                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                       c10::SymIntArrayRef output_padding,
                                       const c10::SymInt& groups, c10::SymIntArrayRef dilation);

}  // namespace demi::products

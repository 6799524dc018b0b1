#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "demi/core/export.h"
#include "demi/quantization/recipe.h"

namespace demi::quantization {

/// The products of a layer. Their numbers are part of roundings by chance.
enum class Product : std::uint8_t { output, input_gradient, weight_gradient };

/// An operand of a product as it was, and as the product read it.
struct SeenOperand {
  at::Tensor given;  // a matrix, or what a convolution takes
  /// Of the same sizes, in FP32; times `factor` they stand for `given`, or for its
  /// transform, which may have up to 15 more rows.
  at::Tensor values;
  at::Tensor factor;   // (1), one for each row, or one for each column; undefined: 1
  const Operand* how;  // of the recipe
};

/// Hears of the products of layers with a recipe, for instruments.
class DEMI_API ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  /// Called behind each product, in the thread that computes it, which for backward is one of
  /// autograd's. Of the left operand the rows are those of the result, of the right one the
  /// columns. `result`: in FP32, without a bias. `exact` computes it of the operands as they were,
  /// in FP32, in as much time. Tensors must not be written to.
  virtual void on_product(const QuantizedWeight& weight, Product product, const SeenOperand& left,
                          const SeenOperand& right, const at::Tensor& result,
                          const std::function<at::Tensor()>& exact) = 0;
};

/// x weight^T + bias as a recipe has it, differentiable once: the operands are quantized, their
/// products are exact and summed in FP32, the scales are applied to the sums, the bias is added in
/// FP32, and the result is rounded once, to `dtype`. x (..., in), weight (out, in) and bias (out)
/// are fp32, bf16 or fp16; the result is (..., out) of `dtype`, one of these. Gradients have the
/// dtypes of x, weight and bias. An Inf or NaN makes NaN of what its scale covers.
///
/// A product of two numbers is exact. Where `dtype` has 16 bits, operands are bf16, and products
/// those of products::product_in_fp32; FP32 scales of blocks are applied to the sums of each slice
/// of 128. Else both are FP32, blocks are scaled before, and products are at::mm's. What sums of
/// few bits in hardware do to a result (Hopper's FP8 accumulators) is not emulated.
///
/// Codes of a weight that is owned (weights::own, demi's optimizers) are kept until the next write
/// to it. On a CPU, on CUDA and elsewhere alike; does not synchronise. Throws UsageError for
/// dtypes and shapes that do not fit, and in a backward pass that is differentiated itself.
DEMI_API at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias,
                           std::shared_ptr<const QuantizedWeight> how, at::ScalarType dtype);

/// Convolution's numbers beside its tensors, as at::convolution takes them.
struct ConvolutionShape {
  std::vector<std::int64_t> stride, padding, dilation;  // one for each dimension of space
  bool transposed = false;                              // a transposed convolution
  std::vector<std::int64_t> output_padding;             // as long
  std::int64_t groups = 1;                              // of channels
};

/// A convolution by a recipe that takes them, as linear(). x (batch, in, ...).
DEMI_API at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias,
                                const ConvolutionShape& shape,
                                std::shared_ptr<const QuantizedWeight> how, at::ScalarType dtype);

}  // namespace demi::quantization

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "demi/core/export.h"
#include "demi/kernels/quantized.h"

namespace demi::quantization {

using kernels::NarrowFormat;
using kernels::Scaling;

/// What the random bits of a rounding by chance depend on besides the element's place: nothing else
/// does, so no number of threads, rank, device or resumed run changes a bit.
struct RandomRounding {
  std::uint64_t seed;     // of the run
  std::uint32_t tensor;   // which tensor of the network, below 2^30
  std::uint32_t product;  // which of the products of a layer reads it, below 4
  std::uint32_t step;     // which step of the run
};

/// How a tensor is quantized.
struct Options {
  NarrowFormat format = NarrowFormat::e4m3;  // of the codes
  Scaling scaling = Scaling::mx_ceil;        // nv and nv_torchao need e2m1
  /// Blocks are neighbours in the last dimension, which a product with it sums over. With `down`
  /// they are neighbours in the dimension of all the others together, as tokens are. Square blocks
  /// are the same in both directions.
  bool down = false;
  /// Absent: to nearest, ties to even.
  std::optional<RandomRounding> by_chance = {};
};

/// A tensor's codes and scales. The tensor counts as a matrix (rows, columns) whose columns are its
/// last dimension. Tensors are on the device of the one that was quantized.
struct Quantized {
  /// (rows, columns) of float8_e4m3fn or float8_e5m2, or (rows, (columns + 1) / 2) of
  /// float4_e2m1fn_x2.
  at::Tensor codes;
  /// Blocks of B: (rows, blocks), with `down` (blocks, columns), or (blocks, blocks) of square
  /// ones, where blocks is a length over B, rounded up. Of tensor and row: (1), (rows) or
  /// (columns). float8_e8m0fnu of mx, float8_e4m3fn of nv: a code's number times its scale. FP32 of
  /// the others: a code's number divided by it.
  at::Tensor scales;
  /// (1), FP32, of nv, by which its scales are multiplied; undefined otherwise.
  at::Tensor tensor_scale;

  std::vector<std::int64_t> sizes;  // of the tensor that was quantized
  NarrowFormat format;              // of the codes
  Scaling scaling;                  // of the scales
  bool down;                        // as in Options
};

/// The codes and scales of a tensor of fp32, bf16 or fp16 with one dimension or more. No gradient
/// passes. Finite numbers beyond the format's greatest, after scaling, saturate; an Inf or NaN
/// makes its block, row or tensor NaN (the scale is). A last block that is not full counts as
/// filled up with zeros.
///
/// On a CPU with all threads, and with the same bits for any number of them. On CUDA in a few
/// launches on the current stream, without synchronising, where the kernels are usable
/// (kernels::path_for); elsewhere on the CPU, and copied back. Throws UsageError for another dtype,
/// a tensor without dimensions, nv with a format other than e2m1, a RandomRounding out of range.
DEMI_API Quantized quantize(const at::Tensor& values, const Options& options = {});

/// The numbers that codes and scales stand for, of the sizes that were quantized: fp32, or rounded
/// to bf16 or fp16. Devices and synchronisation as quantize(). Throws UsageError for another dtype,
/// and for codes and scales that are not those of `sizes`, format and scaling.
DEMI_API at::Tensor dequantize(const Quantized& quantized, at::ScalarType dtype = at::kFloat);

}  // namespace demi::quantization

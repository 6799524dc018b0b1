#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/dtype.h"
#include "demi/core/export.h"
#include "lab/number/expression.h"
#include "lab/number/float_bits.h"

namespace demi::number {

/// A form of numbers that share a scale, as demi::quantization makes them of FP32 numbers.
struct BlockForm {
  std::string_view name;  // "mxfp8"
  std::string_view about;
  std::span<const Dtype> formats;  // those that it is made of, the default first
  std::size_t most;                // numbers of a block; 0: any, the scale is that of a tensor
};

/// fp8, mxfp8, mxfp4 and nvfp4. Static storage.
DEMI_API std::span<const BlockForm> block_forms();
/// Throws UsageError for another name.
DEMI_API const BlockForm& parse_block_form(std::string_view name);

/// A number of a block.
struct BlockNumber {
  float from;   // FP32, which is quantized
  Bits code;    // of the format
  float value;  // what code and scale stand for
  /// Of rounding the number over its scale. kOverflow: it saturated; kNaN: the scale is NaN.
  Outcome outcome;
  std::optional<double> error_ulp;  // in the format's units, at the number over its scale
};

/// Numbers that share a scale.
struct Block {
  const BlockForm* form;
  const Format* format;
  float amax;         // the greatest magnitude
  float tensor_amax;  // that of the tensor
  /// What codes are multiplied by, in nvfp4 times tensor_scale, or, in fp8, divided by.
  float scale;
  std::optional<std::uint8_t> scale_code;  // E8M0, or E4M3 of nvfp4
  std::optional<float> tensor_scale;       // of nvfp4
  std::vector<BlockNumber> numbers;
};

/// `tensor_amax`: the greatest magnitude of the tensor that the block is of, where that decides
/// (fp8, nvfp4); the block's if absent. Throws UsageError for a format that the form is not made
/// of, too many numbers or none, and a `tensor_amax` below the block's.
DEMI_API Block quantize_block(const BlockForm& form, const Format& format,
                              const std::vector<float>& numbers, std::optional<float> tensor_amax);

/// The scale in words, a line for each of its parts: "2^-3 = 0.125, E8M0 code 0x7C = -3 + 127".
DEMI_API std::vector<std::string> scale_text(const Block& block);

/// A number of FP32 as messages show it: "0.125", "nan".
DEMI_API std::string shown(float x);

}  // namespace demi::number

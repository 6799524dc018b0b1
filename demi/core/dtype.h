#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// A number format that demi computes in, measures or explains. tf32 is a mode of FP32 matrix
/// products (19 bits kept), not a storage format: its size is that of fp32.
enum class Dtype { fp64, fp32, tf32, fp16, bf16, fp8_e4m3, fp8_e5m2, fp4_e2m1 };

/// The fields of a binary floating point format. IEEE 754-2019 section 3.4 for fp64, fp32 and fp16;
/// bf16 and tf32 are fp32 with fewer fraction bits; the FP8 formats: Micikevicius et al. 2022, "FP8
/// formats for deep learning", table 1; fp4_e2m1: OCP Microscaling formats 1.0, section 5.3.3.
struct Format {
  Dtype dtype;  // which format
  /// The printed name: "bf16".
  std::string_view name;
  int bytes;          // of storage; two numbers of fp4_e2m1 share one
  int exponent_bits;  // bits of the exponent field
  int fraction_bits;  // those that are stored: without the leading 1
  int bias;           // of the exponent
  bool has_infinity;  // fp8_e4m3 (PyTorch's float8_e4m3fn) has none: S.1111.111 is NaN, S.1111.110
                      // is 448
  bool has_nan;       // fp4_e2m1 has neither Inf nor NaN: what is beyond 6 is 6
};

/// All formats, widest first. Static storage.
DEMI_API std::span<const Format> formats();

/// The fields of one format.
DEMI_API const Format& format_of(Dtype dtype);

/// The name as demi prints it: "fp16", "fp8_e4m3".
DEMI_API std::string_view name_of(Dtype dtype);

/// The format of that name, whatever its letter case. PyTorch's and C's names are known, too
/// (float16, half, bfloat16, float, single, double, e4m3, ...). Empty for an unknown name.
DEMI_API std::optional<Dtype> find_dtype(std::string_view name);

/// The format of that name, as find_dtype() finds it. Throws UsageError with the nearest known name
/// if the name is unknown.
DEMI_API Dtype parse_dtype(std::string_view name);

}  // namespace demi

#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

#include "demi/core/bf16_products.h"
#include "demi/core/export.h"
#include "demi/core/instruction_set.h"

namespace demi::doctor {

/// An architecture of NVIDIA's GPUs, and the formats whose products it computes on tensor cores
/// (CUDA C++ programming guide, "Compute capabilities").
struct GpuArchitecture {
  std::string_view name;  // "Hopper"; "unknown" for one older than Kepler or newer than this table
  bool fp16 = false;      // from compute capability 7.0 on
  bool tf32 = false;      // 8.0
  bool bf16 = false;      // 8.0
  bool fp8 = false;       // 8.9
};

/// `compute_capability` is 10 * major + minor.
DEMI_API GpuArchitecture gpu_architecture(int compute_capability);

/// The architecture for a text such as "9.0"; that of 0 if the text is none.
DEMI_API GpuArchitecture gpu_architecture(std::string_view compute_capability);

/// A number format on a device: whether its products have units of their own, and their rate.
struct Format {
  std::string dtype;         // fp32, tf32, fp16, bf16, fp8
  bool has_unit = false;     // instructions or tensor cores for its products
  std::string unit;          // what computes them, or what is missing
  bool is_measured = false;  // whether measure() has a product for it
  double tflops = 0;         // measured; 0: not
  int64_t size = 0;          // of the matrices at that rate
  double over_fp32 = 0;      // its rate over FP32's; 0: not measured
  std::string failure;       // why it could not be measured
};

/// The formats of a processor that may use these instructions, and multiplies bf16 in that way; not
/// measured.
DEMI_API std::vector<Format> formats_of(const InstructionSet& usable, Bf16Products bf16);

/// The formats of a GPU, not measured.
DEMI_API std::vector<Format> formats_of(const GpuArchitecture& architecture);

/// Measures each for about so many seconds: products of square matrices, 16-bit ones in a region,
/// as training has them. A format that cannot be measured says why, and the others are.
DEMI_API void measure(std::vector<Format>& formats, c10::Device device, double seconds);

}  // namespace demi::doctor

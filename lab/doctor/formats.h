#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/core/instruction_set.h"
#include "lab/doctor/gpu_architecture.h"

namespace demi::doctor {

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

/// The formats of a processor that may use these instructions, not measured.
DEMI_API std::vector<Format> formats_of(const InstructionSet& usable);

/// Those of a GPU, not measured.
DEMI_API std::vector<Format> formats_of(const GpuArchitecture& architecture);

/// Measures each for about so many seconds: products of square matrices, 16-bit ones in a region,
/// as training has them. A format that cannot be measured says why, and the others are.
DEMI_API void measure(std::vector<Format>& formats, c10::Device device, double seconds);

}  // namespace demi::doctor

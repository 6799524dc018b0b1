#pragma once

#include <string_view>

#include "demi/core/export.h"

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

/// The same of a text such as "9.0"; that of 0 if it is none.
DEMI_API GpuArchitecture gpu_architecture(std::string_view compute_capability);

}  // namespace demi::doctor

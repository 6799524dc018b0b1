#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "demi/core/export.h"

namespace demi::profile {

/// An NVIDIA GPU as its driver describes it.
struct Gpu {
  std::string name;                // "NVIDIA H200"
  std::int64_t memory_bytes = 0;   // total
  std::string compute_capability;  // "9.0"
  std::string driver;              // version, "570.86.15"; empty if only CUDA's is known
  std::string cuda;                // the newest CUDA that the driver supports, "12.8"
};

/// The address of a function of the driver (libcuda, libnvidia-ml) by name; null if there is none.
using DriverSymbols = std::function<void*(const char* name)>;

/// The GPU with that CUDA ordinal, as CUDA_VISIBLE_DEVICES counts. None if there is no driver or no
/// such GPU. Loads the driver's libraries at run time and makes no CUDA context.
DEMI_API std::optional<Gpu> gpu(int ordinal);
/// Asks the given functions in place of the driver's, for tests.
DEMI_API std::optional<Gpu> gpu(int ordinal, const DriverSymbols& symbols);

}  // namespace demi::profile

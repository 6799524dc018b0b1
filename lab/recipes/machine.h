#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "demi/core/export.h"
#include "demi/profile/gpu.h"
#include "demi/train/names.h"

namespace demi::recipes {

/// The machine of a run.
struct Machine {
  std::string device;               // "cpu", "cuda:0"
  std::string device_name;          // the processor's or the GPU's
  std::optional<profile::Gpu> gpu;  // of a CUDA device: memory, driver
  std::string processor;            // its name
  std::string instruction_set;      // of the processor, as far as the user lets LibTorch use it
  int threads = 0;                  // LibTorch's, for one operation
  std::string libtorch;             // version
  std::string demi;                 // version
};

/// The machine that this process runs on, with that device.
DEMI_API Machine machine(c10::Device device);

/// The machine in one line, for people: "NVIDIA H200 (139.8 GiB, driver 570.86.15, CUDA 12.8), AMD
/// EPYC 9654 (AVX-512, 16 threads), LibTorch 2.15.0, demi 0.1.0".
DEMI_API std::string describe(const Machine& machine);

/// The title of a table of runs there: "cpu", or the GPU's name.
DEMI_API std::string title(const Machine& machine);

/// A note to print before training if `precision` does not pay on the device, with the known
/// factor; "" if it does.
DEMI_API std::string slow_precision_warning(const Precision& precision, c10::Device device);

}  // namespace demi::recipes

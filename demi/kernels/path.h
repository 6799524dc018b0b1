#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::kernels {

/// Ways to compute a step. Order of preference: cuda for CUDA tensors; avx512, avx2, reference for
/// CPU tensors; aten (LibTorch's own operators, in demi/step) for any other device, or if asked
/// for.
enum class Path { reference, avx2, avx512, cuda, aten };

/// The devices that kernels are chosen for.
enum class Device { cpu, cuda, other };

/// One path, and whether this machine can run it.
struct PathStatus {
  Path path;  // which one
  /// As `DEMI_KERNELS` spells it.
  std::string_view name;
  bool usable;         // whether it can run here
  std::string reason;  // why not, or what it runs on; to be printed
};

/// The word of `DEMI_KERNELS` for it.
DEMI_API std::string_view name_of(Path path);

/// All paths in order of preference, each with whether this build and machine can use it.
DEMI_API std::vector<PathStatus> paths();

/// The best path of CPU tensors here that is not above the level that ATEN_CPU_CAPABILITY sets for
/// LibTorch's operators ("avx2", "default"; anything else sets none): avx2 and reference at most.
DEMI_API Path usual_cpu_path(std::string_view aten_capability);

/// The path of a step on that device; of CUDA devices the current one is asked. `forced` is the
/// name that DEMI_KERNELS holds: it decides for the device that it can serve (cuda: CUDA tensors;
/// reference, avx2, avx512: CPU tensors; aten: all), the others go their usual way (on a CPU
/// usual_cpu_path() of the environment's ATEN_CPU_CAPABILITY). Throws UsageError where the name is
/// unknown, or the path is not usable here.
DEMI_API Path path_for(Device device, std::optional<std::string> forced);

/// As path_for() above, with the environment's DEMI_KERNELS as `forced`, read at each call.
DEMI_API Path path_for(Device device);

}  // namespace demi::kernels

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi {

/// The LibTorch of a process.
struct LoadedLibTorch {
  std::string version;             // "2.15.0"; "": it has no function that tells it
  std::string file;                // the libtorch_cpu that demi's calls reach; "": none
  std::vector<std::string> files;  // every libtorch_cpu in memory
};

/// The LibTorch that demi was compiled against: "2.15.0".
DEMI_API std::string_view compiled_libtorch();

/// The LibTorch that is loaded now. Takes microseconds. Any thread.
DEMI_API LoadedLibTorch loaded_libtorch();

/// Throws UsageError, which names the files, if a LibTorch of another minor version than `compiled`
/// is loaded, or more than one: LibTorch has no stable C++ interface between minor versions, and
/// two copies in a process know nothing of each other's operators, modes and tensors.
DEMI_API void check_libtorch(std::string_view compiled, const LoadedLibTorch& loaded);

/// check_libtorch() of this process, once; later calls take nanoseconds. Regions, optimizers,
/// scalers, steps, checkpoints, imported models and process groups call it: a program begins with
/// one of these. A LibTorch that is loaded later is not noticed.
DEMI_API void require_libtorch();

}  // namespace demi

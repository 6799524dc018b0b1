#pragma once

#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::doctor {

/// Threads of the process, and the cores that they can have.
struct DEMI_API Cores {
  int threads = 0;              // LibTorch's, for one operation
  int online = 0;               // of the machine
  int allowed = 0;              // by the process's affinity mask (taskset, OMP_PROC_BIND, ...)
  std::optional<double> quota;  // of the control group, in cores; none: no limit
  std::string pinning;          // the variables that bind threads to cores; "none"
  std::string allocator;        // of the host: "glibc", "jemalloc", ...

  /// The cores that threads can have at once.
  double usable() const;
};

/// The cores of this process.
DEMI_API Cores cores();

/// Faults of the number of threads, with advice; empty: none.
DEMI_API std::vector<std::string> faults(const Cores& cores);

}  // namespace demi::doctor

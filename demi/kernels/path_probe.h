#pragma once

#include <string>

#include "demi/kernels/path.h"

namespace demi::kernels {

struct Probe {
  bool usable;
  std::string reason;  // why not, or what it runs on
};

/// Asks the build and the machine, once a path for cuda.
Probe probe_path(Path path);

}  // namespace demi::kernels

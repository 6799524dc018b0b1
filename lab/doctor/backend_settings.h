#pragma once

#include <string>
#include <vector>

#include "demi/backends/backends.h"
#include "demi/core/export.h"

namespace demi::doctor {

/// A setting of demi::Backends for people.
struct BackendSetting {
  std::string name;        // in Python: torch.backends.cudnn.benchmark
  std::string option;      // of demi train: --cudnn-benchmark; empty: it is none
  std::string value;       // now
  std::string by_default;  // PyTorch's default
  std::string gain;        // what it buys
  std::string cost;        // what it costs
};

/// The settings and their present values, with what each gains and costs.
DEMI_API std::vector<BackendSetting> backend_settings(const Backends& now);

}  // namespace demi::doctor

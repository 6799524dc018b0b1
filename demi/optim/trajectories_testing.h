#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

#include "demi/core/source_dir_testing.h"

namespace demi {

/// Python PyTorch's numbers (benchmarks/peers/trajectories.py). For tests.
inline const nlohmann::json& trajectories() {
  static const nlohmann::json numbers =
      nlohmann::json::parse(std::ifstream(source_dir() / "benchmarks/peers/trajectories.json"));
  return numbers;
}

}  // namespace demi

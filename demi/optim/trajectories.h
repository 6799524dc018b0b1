#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

namespace demi {

/// Python PyTorch's numbers (benchmarks/peers/trajectories.py). For tests.
inline const nlohmann::json& trajectories() {
  static const nlohmann::json numbers =
      nlohmann::json::parse(std::ifstream(DEMI_SOURCE_DIR "/benchmarks/peers/trajectories.json"));
  return numbers;
}

}  // namespace demi

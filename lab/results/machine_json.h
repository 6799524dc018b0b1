#pragma once

#include <nlohmann/json.hpp>

#include "lab/recipes/machine.h"

namespace demi::results {

/// The machine in every command's JSON. Fields that a CPU lacks are null.
inline nlohmann::ordered_json json_of(const recipes::Machine& machine) {
  const auto of_gpu = [&](auto field) {
    return machine.gpu ? nlohmann::ordered_json((*machine.gpu).*field) : nlohmann::ordered_json();
  };
  return {{"device", machine.device},
          {"device_name", machine.device_name},
          {"device_memory_bytes", of_gpu(&profile::Gpu::memory_bytes)},
          {"compute_capability", of_gpu(&profile::Gpu::compute_capability)},
          {"driver", of_gpu(&profile::Gpu::driver)},
          {"cuda", of_gpu(&profile::Gpu::cuda)},
          {"processor", machine.processor},
          {"instruction_set", machine.instruction_set},
          {"threads", machine.threads},
          {"libtorch", machine.libtorch},
          {"demi", machine.demi}};
}

}  // namespace demi::results

#include "demi/attention/draw.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace demi::sdpa {

DropoutSeed draw_seed() {
  auto* generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
      std::nullopt, at::detail::getDefaultCPUGenerator());
  const std::lock_guard lock(generator->mutex_);
  return {.seed = generator->random64()};
}

}  // namespace demi::sdpa

#include "lab/models/seeded.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace demi::models {
namespace {

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

}  // namespace

Seeded::Seeded(uint64_t seed) {
  at::Generator cpu = generator();
  const std::lock_guard lock(cpu.mutex());
  state_ = cpu.get_state();
  cpu.set_current_seed(seed);
}

Seeded::~Seeded() {
  at::Generator cpu = generator();
  const std::lock_guard lock(cpu.mutex());
  cpu.set_state(state_);
}

}  // namespace demi::models

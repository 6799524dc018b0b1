#include "demi/recompute/forward_state.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <mutex>

namespace demi::recomputation {
namespace {

at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

RandomState::RandomState(const std::vector<c10::Device>& devices) {
  const at::DisableRecordFunctionGuard unobserved;
  for (const auto device : devices) {
    at::Generator generator = generator_of(device);
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(device, generator.get_state());
  }
}

void RandomState::restore() const {
  const at::DisableRecordFunctionGuard unobserved;
  for (const auto& [device, state] : states_) {
    at::Generator generator = generator_of(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

std::vector<c10::Device> RandomState::devices() const {
  std::vector<c10::Device> all;
  for (const auto& [device, state] : states_) all.push_back(device);
  return all;
}

ForwardState::Guard::Guard(const ForwardState& state)
    : region_(state.region),
      keys_(state.keys),
      was_local_(set_local_pass(state.is_local)),
      present_(state.random.devices()) {
  state.random.restore();
}

ForwardState::Guard::~Guard() {
  present_.restore();
  set_local_pass(was_local_);
}

}  // namespace demi::recomputation

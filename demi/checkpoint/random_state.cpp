#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/checkpoint/prepared_state.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

constexpr std::string_view kRandomPrefix = "random/";

std::vector<c10::Device> generator_devices() {
  std::vector<c10::Device> all{c10::kCPU};
  if (!at::hasCUDA()) return all;
  const auto count = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i) all.emplace_back(c10::DeviceType::CUDA, i);
  return all;
}

at::Generator generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

// Whether the generator would accept the state, found out on a copy of it.
void check_random(const at::Generator& generator, const std::string& name,
                  const at::Tensor& state) {
  std::string reason = "another dtype or shape";
  try {
    if (state.scalar_type() == at::kByte && state.dim() == 1) {
      generator.clone().set_state(state);
      return;
    }
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  }
  refuse({.where = kRestore,
          .what = "the state of a random generator cannot be used",
          .seen = name + ", " + reason,
          .accepted = "a state as capture() gave it"});
}

}  // namespace

NamedTensors random_states() {
  NamedTensors all;
  for (const c10::Device device : generator_devices()) {
    at::Generator generator = generator_of(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    all[std::string(kRandomPrefix) + device.str()] = generator.get_state();
  }
  return all;
}

std::function<void()> prepare_random(NamedTensors& state) {
  std::vector<std::pair<at::Generator, at::Tensor>> states;
  std::string absent;
  const std::vector<c10::Device> here = generator_devices();
  for (const auto& [name, saved] : take_part(state, kRandomPrefix)) {
    const auto is_it = [&name = name](c10::Device device) { return name == device.str(); };
    const auto device = std::find_if(here.begin(), here.end(), is_it);
    if (device == here.end()) {
      absent += (absent.empty() ? "" : ", ") + name;
      continue;
    }
    at::Tensor own = saved.detach().cpu().contiguous().clone();
    check_random(generator_of(*device), std::string(kRandomPrefix) + name, own);
    states.emplace_back(generator_of(*device), std::move(own));
  }
  if (!absent.empty()) {
    TORCH_WARN("[checkpoint.restore] the checkpoint holds random states of devices that this ",
               "machine does not have: ", absent, ". They are left alone.");
  }
  if (states.empty()) return {};
  return [states] {
    for (const auto& [generator, values] : states) {
      at::Generator one = generator;
      const std::lock_guard<std::mutex> lock(one.mutex());
      one.set_state(values);
    }
  };
}

}  // namespace demi::checkpoint

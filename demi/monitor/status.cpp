#include "demi/monitor/status.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <ostream>

#include "demi/autocast/policy.h"
#include "demi/tensor/dtype.h"

namespace demi {
namespace {

c10::Device device_of(const torch::nn::Module& model) {
  const auto parameters = model.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

}  // namespace

Status status(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
              const GradScaler& scaler) {
  const c10::Device device = device_of(model);
  Status result{.autocast = at::autocast::is_autocast_enabled(device.type()),
                .dtype = tensor::name_of(at::autocast::get_autocast_dtype(device.type())),
                .policy = std::string(global_policy().name()),
                .nonfinite = monitor::find_nonfinite(model, optimizer),
                .device = device.str(),
                .memory = profile::memory_use(device)};
  if (scaler.is_enabled())
    result.scaling = Status::Scaling{.scale = scaler.get_scale(),
                                     .growth_tracker = scaler.get_growth_tracker(),
                                     .growth_interval = scaler.get_growth_interval(),
                                     .skipped_steps = scaler.get_skipped_steps()};
  return result;
}

std::string to_string(const Status& status) {
  std::string text =
      fmt::format("autocast   {}, {} on {}; policy {}\n", status.autocast ? "on" : "off",
                  status.dtype, status.device, status.policy);
  if (status.scaling) {
    const Status::Scaling& s = *status.scaling;
    text += fmt::format("loss scale {:g}; {} of {} clean steps until it grows; {} step{} skipped\n",
                        s.scale, s.growth_tracker, s.growth_interval, s.skipped_steps,
                        s.skipped_steps == 1 ? "" : "s");
  } else {
    text += "loss scale none\n";
  }
  text += fmt::format("memory     {} bytes allocated, {} bytes reserved, {} bytes at the peak\n",
                      status.memory.current_bytes, status.memory.reserved_bytes,
                      status.memory.peak_bytes);
  if (status.nonfinite.empty()) return text + "Inf, NaN   none\n";
  for (const monitor::NonFinite& found : status.nonfinite)
    text += "Inf, NaN   " + monitor::to_string(found) + "\n";
  return text;
}

std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << to_string(status);
}

}  // namespace demi

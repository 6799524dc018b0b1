#include "lab/settings/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "demi/core/error.h"

namespace demi::settings {
namespace {

bool is_gpu(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return false;
  const std::string_view digits = name.substr(kPrefix.size());
  return !digits.empty() && digits.size() < 4 &&
         digits.find_first_not_of("0123456789") == digits.npos;
}

[[noreturn]] void refuse_list(std::string_view source, std::string_view what,
                              std::string_view seen) {
  throw UsageError({.where = source,
                    .what = what,
                    .seen = seen,
                    .accepted = "cuda:0,cuda:1 or cpu,cpu: a name for each rank"});
}

}  // namespace

bool is_device_name(std::string_view name) {
  return name == "auto" || name == "cpu" || name == "cuda" || is_gpu(name);
}

std::vector<std::string> device_list(std::string_view text, std::string_view source) {
  std::vector<std::string> names = words_of(text);
  for (const std::string& name : names) {
    if (name != "cpu" && !is_gpu(name)) refuse_list(source, "no such device", name);
    if ((name == "cpu") != (names[0] == "cpu"))
      refuse_list(source, "ranks do not meet on the CPU and on GPUs at once", text);
    if (name != "cpu" && std::ranges::count(names, name) > 1)
      refuse_list(source, "a GPU serves one rank", text);
  }
  return names;
}

std::string device_of_rank(const Config& config, int rank) {
  if (config.devices.empty()) return config.device;
  return device_list(config.devices, "devices").at(static_cast<std::size_t>(rank));
}

void check_devices(const Config& config) {
  if (config.devices.empty()) return;
  const std::vector<std::string> names = device_list(config.devices, "devices");
  if (config.ranks != static_cast<std::int64_t>(names.size()))
    throw UsageError(
        {.where = "settings.check",
         .what = "each rank has one device",
         .seen = fmt::format("--ranks {} with --devices {}", config.ranks, config.devices),
         .advice = "leave out --ranks, or name as many devices"});
  const std::string_view device = config.device;
  const bool is_all = device == "auto" || (device == "cuda" && names[0] != "cpu");
  if (!is_all && std::ranges::find(names, device) == names.end())
    throw UsageError({.where = "settings.check",
                      .what = "two settings say where to train",
                      .seen = fmt::format("--device {} with --devices {}", device, config.devices),
                      .advice = "leave out one of them"});
}

void require_gpus(const Config& config, int gpus) {
  if (!config.devices.empty() || config.ranks == 1) return;
  const bool is_one = is_gpu(config.device);
  if (!is_one && config.ranks <= gpus) return;
  throw DeviceError(
      {.where = "--ranks",
       .what = "each rank needs a GPU of its own",
       .seen = is_one ? fmt::format("--ranks {} with --device {}", config.ranks, config.device)
                      : fmt::format("--ranks {}, and {} GPU{} here", config.ranks, gpus,
                                    gpus == 1 ? "" : "s"),
       .accepted = fmt::format("at most {}", std::max(gpus, 1)),
       .advice = is_one ? "--devices cuda:0,cuda:1 names one for each; --device cpu needs none"
                        : "--device cpu needs none"});
}

}  // namespace demi::settings

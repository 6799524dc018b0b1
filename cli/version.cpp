#include "cli/version.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "lab/doctor/doctor.h"
#include "lab/recipes/machine.h"

namespace demi::cli {
namespace {

// The file that one of LibTorch's functions came from.
std::string libtorch_file() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) || !info.dli_fname)
    return "";
  return info.dli_fname;
}

}  // namespace

bool asks_for_versions(const std::vector<std::string>& arguments) {
  const auto has = [&](const char* word) { return std::ranges::count(arguments, word) == 1; };
  return arguments.size() == 2 && has("--version") && has("--verbose");
}

void print_versions() {
  const doctor::Diagnosis known = doctor::diagnose({.seconds = 0});
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& [name, version] : known.libraries)
    lines.emplace_back(name, name == "LibTorch" ? version + ", " + libtorch_file() : version);
  const recipes::Machine machine = recipes::machine(c10::kCPU);
  lines.emplace_back("processor",
                     fmt::format("{} ({})", machine.processor, machine.instruction_set));
  for (const doctor::DeviceReport& device : known.devices)
    if (device.device != "cpu") lines.emplace_back(device.device, device.name);
  if (!known.no_cuda.empty()) lines.emplace_back("CUDA", "none: " + known.no_cuda);
  for (const doctor::PathReport& path : known.paths)
    lines.emplace_back("kernels " + path.name,
                       (path.usable ? "usable: " : "declined: ") + path.reason);
  std::size_t width = 0;
  for (const auto& [name, value] : lines) width = std::max(width, name.size());
  for (const auto& [name, value] : lines)
    std::fputs(fmt::format("{:<{}}  {}\n", name, width, value).c_str(), stdout);
}

}  // namespace demi::cli

#include "cli/version.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/core/version.h"
#include "lab/doctor/doctor.h"
#include "lab/recipes/machine.h"

namespace demi::cli {
namespace {

using Line = std::pair<std::string, std::string>;  // a name and what is known of it

void print(const std::vector<Line>& lines) {
  std::size_t width = 0;
  for (const auto& [name, value] : lines) width = std::max(width, name.size());
  for (const auto& [name, value] : lines)
    std::fputs(fmt::format("{:<{}}  {}\n", name, width, value).c_str(), stdout);
}

}  // namespace

bool asks_for_versions(const std::vector<std::string>& arguments) {
  const auto has = [&](const char* word) { return std::ranges::count(arguments, word) == 1; };
  return arguments.size() == 2 && has("--version") && has("--verbose");
}

void print_versions() {
  const LoadedLibTorch loaded = loaded_libtorch();
  std::vector<Line> lines{{"demi", std::string(version())},
                          {"LibTorch", loaded.version + ", " + loaded.file}};
  try {
    require_libtorch();  // what is asked next may crash in another one
  } catch (const UsageError&) {
    print(lines);
    throw;
  }
  const doctor::Diagnosis known = doctor::diagnose({.seconds = 0});
  for (const auto& [name, value] : known.libraries) {
    if (name == "LibTorch")
      lines[1].second = value + ", " + loaded.file;
    else if (name != "demi")
      lines.emplace_back(name, value);
  }
  const recipes::Machine machine = recipes::machine(c10::kCPU);
  lines.emplace_back("processor",
                     fmt::format("{} ({})", machine.processor, machine.instruction_set));
  for (const doctor::DeviceReport& device : known.devices)
    if (device.device != "cpu") lines.emplace_back(device.device, device.name);
  if (!known.no_cuda.empty()) lines.emplace_back("CUDA", "none: " + known.no_cuda);
  for (const doctor::PathReport& path : known.paths)
    lines.emplace_back("kernels " + path.name,
                       (path.usable ? "usable: " : "declined: ") + path.reason);
  print(lines);
}

}  // namespace demi::cli

#include "demi/kernels/path.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/path_probe.h"

namespace demi::kernels {
namespace {

constexpr std::array kPreference = {Path::cuda, Path::avx512, Path::avx2, Path::reference,
                                    Path::aten};

PathStatus status_of(Path path) {
  const Probe probe = probe_path(path);
  return {path, name_of(path), probe.usable, probe.reason};
}

bool serves(Path path, Device device) {
  if (path == Path::aten) return true;
  if (path == Path::cuda) return device == Device::cuda;
  return device == Device::cpu;
}

Path path_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Path path : kPreference) {
    if (name == name_of(path)) return path;
    names.emplace_back(name_of(path));
  }
  throw UsageError({.where = "kernels.path_for",
                    .what = "DEMI_KERNELS names no path",
                    .seen = name,
                    .advice = did_you_mean(name, names)});
}

// LibTorch reads the variable once, too.
Path usual_cpu_path_here() {
  static const Path path = [] {
    const char* capability = std::getenv("ATEN_CPU_CAPABILITY");
    return usual_cpu_path(capability ? capability : "");
  }();
  return path;
}

}  // namespace

std::string_view name_of(Path path) {
  switch (path) {
    case Path::reference:
      return "reference";
    case Path::avx2:
      return "avx2";
    case Path::avx512:
      return "avx512";
    case Path::cuda:
      return "cuda";
    case Path::aten:
      return "aten";
  }
  return "unknown";
}

std::vector<PathStatus> paths() {
  std::vector<PathStatus> all;
  for (const Path path : kPreference) all.push_back(status_of(path));
  return all;
}

Path usual_cpu_path(std::string_view aten_capability) {
  for (const Path path : {Path::avx512, Path::avx2}) {
    const bool is_above =
        aten_capability == "default" || (aten_capability == "avx2" && path == Path::avx512);
    if (!is_above && probe_path(path).usable) return path;
  }
  return Path::reference;
}

Path path_for(Device device, std::optional<std::string> forced) {
  if (forced && !forced->empty()) {
    const Path path = path_named(*forced);
    const Probe probe = probe_path(path);
    if (!probe.usable) {
      throw UsageError({.where = "kernels.path_for",
                        .what = "the path that DEMI_KERNELS asks for cannot be used here",
                        .seen = *forced,
                        .accepted = probe.reason,
                        .advice = "unset DEMI_KERNELS, or name another path"});
    }
    if (serves(path, device)) return path;
  }
  if (device == Device::cpu) return usual_cpu_path_here();
  return device == Device::cuda && probe_path(Path::cuda).usable ? Path::cuda : Path::aten;
}

Path path_for(Device device) {
  const char* forced = std::getenv("DEMI_KERNELS");
  return path_for(device, forced ? std::optional<std::string>(forced) : std::nullopt);
}

const CpuKernels* cpu_kernels() { return cpu_kernels(path_for(Device::cpu)); }

}  // namespace demi::kernels

#include "demi/kernels/path.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "demi/core/error.h"
#include "demi/core/instruction_set.h"
#include "demi/core/nearest.h"
#include "demi/kernels/cpu/tables.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi::kernels {
namespace {

constexpr std::array kPreference = {Path::cuda, Path::avx512, Path::avx2, Path::reference,
                                    Path::aten};

struct Probe {
  bool usable;
  std::string reason;  // why not, or what it runs on
};

Probe probe_simd(const CpuKernels* built, bool machine_has, std::string needs) {
  if (!built) return {false, "not built: the compiler or the processor family has no " + needs};
  if (!machine_has) return {false, "this processor has no " + needs};
  return {true, describe(instruction_set())};
}

Probe probe_cuda() {
  std::string why;
  const bool usable = cuda_kernels(&why) != nullptr;
  return {usable, why};
}

/// Asks the build and the machine.
Probe probe_path(Path path) {
  switch (path) {
    case Path::reference:
      return {true, "plain C++"};
    case Path::avx2:
      return probe_simd(avx2_kernels(), instruction_set().avx2, "AVX2 with F16C");
    case Path::avx512:
      return probe_simd(avx512_kernels(), instruction_set().avx512, "AVX-512 (F, BW, DQ, VL)");
    case Path::cuda:
      return probe_cuda();
    case Path::aten:
      return {true, "LibTorch's operators"};
  }
  return {false, "unknown path"};
}

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
                        .seen = *forced + ": " + probe.reason,
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

}  // namespace demi::kernels

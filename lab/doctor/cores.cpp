#include "lab/doctor/cores.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "demi/core/control_group.h"

namespace demi::doctor {
namespace {

int allowed_cores(int online) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : online;
}

std::string pinning() {
  std::string text;
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"})
    if (const char* value = std::getenv(name))
      text += (text.empty() ? "" : ", ") + std::string(name) + "=" + value;
  return text.empty() ? "none" : text;
}

// The allocator's name, known by a function that only that allocator has.
std::string allocator() {
  for (const auto& [symbol, name] :
       {std::pair("mallctl", "jemalloc"), {"tc_version", "tcmalloc"}, {"mi_version", "mimalloc"}})
    if (dlsym(RTLD_DEFAULT, symbol)) return name;
  return "glibc";
}

}  // namespace

double Cores::usable() const {
  const double cores = allowed;
  return quota ? std::min(cores, *quota) : cores;
}

Cores cores() {
  Cores result;
  result.threads = at::get_num_threads();
  result.online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  result.allowed = allowed_cores(result.online);
  result.quota = control_group_limits().cores;
  result.pinning = pinning();
  result.allocator = allocator();
  return result;
}

std::vector<std::string> faults(const Cores& cores) {
  const int usable = std::max(1, static_cast<int>(std::floor(cores.usable())));
  if (cores.threads > usable)
    return {
        fmt::format("{} threads share {} cores and wait for each other: --threads {}, or "
                    "OMP_NUM_THREADS={}",
                    cores.threads, usable, usable, usable)};
  // Half of them is LibTorch's own choice where each core has two threads.
  if (2 * cores.threads < usable)
    return {fmt::format("{} threads leave {} of {} cores idle: --threads {}, or OMP_NUM_THREADS={}",
                        cores.threads, usable - cores.threads, usable, usable, usable)};
  return {};
}

}  // namespace demi::doctor

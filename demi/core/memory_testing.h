#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace demi {

/// For tests: by how many kilobytes the process's resident memory rose at most while `call` ran. -1
/// where that cannot be told: a kernel that does not let the peak be reset, a sanitizer, whose own
/// memory would be counted, too.
template <class Call>
int64_t peak_kilobytes_of(const Call& call) {
  const auto read = [](const std::string& name) -> int64_t {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
    return 0;
  };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  call();
  return -1;
#else
  const bool reset = static_cast<bool>((std::ofstream("/proc/self/clear_refs") << "5").flush());
  const int64_t before = read("VmRSS:");
  call();
  return reset ? read("VmHWM:") - before : -1;
#endif
}

}  // namespace demi

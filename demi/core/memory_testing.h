#pragma once

#include <malloc.h>
#include <sys/prctl.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace demi {

/// Keeps the kernel, in tests, from giving this process huge pages, for any
/// /sys/kernel/mm/transparent_hugepage. With them the first use of a byte counts 2 MiB.
class WithoutHugePages {
 public:
  WithoutHugePages() { ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); }
  ~WithoutHugePages() { ::prctl(PR_SET_THP_DISABLE, before_, 0, 0, 0); }
  WithoutHugePages(const WithoutHugePages&) = delete;
  WithoutHugePages& operator=(const WithoutHugePages&) = delete;

 private:
  int before_ = ::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
};

/// For tests: the most kilobytes by which the process's resident memory rose while `call` ran,
/// without huge pages. -1 if that cannot be measured: the kernel does not let the peak be reset, or
/// a sanitizer is in use, whose own memory would be counted.
template <class Call>
int64_t peak_kilobytes_of(const Call& call) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  call();
  return -1;
#else
  const auto read = [](const std::string& name) -> int64_t {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
    return 0;
  };
  const WithoutHugePages small_pages;
  ::malloc_trim(0);  // memory that was freed would be used again unseen
  const bool reset = static_cast<bool>((std::ofstream("/proc/self/clear_refs") << "5").flush());
  const int64_t before = read("VmRSS:");
  call();
  return reset ? read("VmHWM:") - before : -1;
#endif
}

}  // namespace demi

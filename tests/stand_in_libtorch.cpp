// Stands for a second LibTorch in a process: a library named libtorch_cpu.so, or, with
// STAND_IN_VERSION (0x020b: 2.11), one whose function that tells the version comes before
// LibTorch's.
#include <cstdint>

extern "C" {
#ifdef STAND_IN_VERSION
[[gnu::visibility("default")]] uint64_t aoti_torch_abi_version() {
  return uint64_t{STAND_IN_VERSION} << 48;
}
#else
[[gnu::visibility("default")]] extern const int stand_in_libtorch = 1;
#endif
}

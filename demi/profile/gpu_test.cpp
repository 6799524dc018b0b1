#include "demi/profile/gpu.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <string>

namespace demi::profile {
namespace {

// A driver of two GPUs with the signatures of cuda.h and nvml.h.
namespace driver {
int init(unsigned) { return 0; }
int get(int* device, int ordinal) {
  *device = 40 + ordinal;
  return ordinal < 2 ? 0 : 101;  // CUDA_ERROR_INVALID_DEVICE
}
int name(char* text, int length, int device) {
  std::strncpy(text, device == 41 ? "NVIDIA Second" : "NVIDIA First", static_cast<size_t>(length));
  return 0;
}
int memory(std::size_t* bytes, int) {
  *bytes = std::size_t{141} << 30;
  return 0;
}
int attribute(int* value, int which, int) {
  *value = which == 75 ? 9 : which == 76 ? 0 : -1;
  return 0;
}
int cuda(int* version) {
  *version = 12080;
  return 0;
}
int management() { return 0; }
int version(char* text, unsigned length) {
  std::strncpy(text, "570.86.15", length);
  return 0;
}
}  // namespace driver

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

std::map<std::string, void*> symbols() {
  return {{"cuInit", address(driver::init)},
          {"cuDeviceGet", address(driver::get)},
          {"cuDeviceGetName", address(driver::name)},
          {"cuDeviceTotalMem_v2", address(driver::memory)},
          {"cuDeviceGetAttribute", address(driver::attribute)},
          {"cuDriverGetVersion", address(driver::cuda)},
          {"nvmlInit_v2", address(driver::management)},
          {"nvmlShutdown", address(driver::management)},
          {"nvmlSystemGetDriverVersion", address(driver::version)}};
}

DriverSymbols lookup(const std::map<std::string, void*>& known) {
  return [known](const char* name) -> void* {
    const auto found = known.find(name);
    return found == known.end() ? nullptr : found->second;
  };
}

TEST(Gpu, IsTheOneOfTheOrdinalInTheDriversWords) {
  const auto second = gpu(1, lookup(symbols()));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->name, "NVIDIA Second");
  EXPECT_EQ(second->memory_bytes, int64_t{141} << 30);
  EXPECT_EQ(second->compute_capability, "9.0");
  EXPECT_EQ(second->driver, "570.86.15");
  EXPECT_EQ(second->cuda, "12.8");
}

TEST(Gpu, IsNoneWithoutADriverAndWithoutThatGpu) {
  EXPECT_FALSE(gpu(0, lookup({})));
  EXPECT_FALSE(gpu(2, lookup(symbols())));
  EXPECT_FALSE(gpu(1 << 20)) << "with the driver of this machine, if any";
}

TEST(Gpu, KnowsCudasVersionAloneWhereTheManagementLibraryIsMissing) {
  auto known = symbols();
  known.erase("nvmlInit_v2");
  const auto first = gpu(0, lookup(known));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->name, "NVIDIA First");
  EXPECT_EQ(first->driver, "");
  EXPECT_EQ(first->cuda, "12.8");
}

}  // namespace
}  // namespace demi::profile

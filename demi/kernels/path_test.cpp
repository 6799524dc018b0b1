#include "demi/kernels/path.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "demi/core/error.h"
#include "demi/core/instruction_set.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi::kernels {
namespace {

TEST(Path, ListsAllInOrderOfPreferenceWithReasons) {
  const std::vector<PathStatus> all = paths();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].name, "cuda");
  EXPECT_EQ(all[1].name, "avx512");
  EXPECT_EQ(all[2].name, "avx2");
  EXPECT_EQ(all[3].name, "reference");
  EXPECT_EQ(all[4].name, "aten");
  for (const PathStatus& status : all) EXPECT_FALSE(status.reason.empty()) << status.name;
  EXPECT_EQ(all[1].usable, instruction_set().avx512);
  EXPECT_EQ(all[2].usable, instruction_set().avx2);
  EXPECT_TRUE(all[3].usable && all[4].usable);
}

TEST(Path, ForcingWorks) {
  for (const PathStatus& status : paths()) {
    if (status.path == Path::cuda) continue;
    const std::string name(status.name);
    if (status.usable) {
      EXPECT_EQ(path_for(Device::cpu, name), status.path);
    } else {
      EXPECT_THROW(path_for(Device::cpu, name), UsageError);
    }
  }
  EXPECT_EQ(path_for(Device::cuda, "aten"), Path::aten);
  EXPECT_EQ(path_for(Device::other, "reference"), Path::aten);
  EXPECT_EQ(path_for(Device::other, std::nullopt), Path::aten);
}

TEST(Path, TheUsualOneIsNotAboveLibTorchsLevel) {
  const Path best = instruction_set().avx512 ? Path::avx512
                    : instruction_set().avx2 ? Path::avx2
                                             : Path::reference;
  const Path without_avx512 = instruction_set().avx2 ? Path::avx2 : Path::reference;
  for (const char* level : {"", "avx512", "avx5"}) EXPECT_EQ(usual_cpu_path(level), best) << level;
  EXPECT_EQ(usual_cpu_path("avx2"), without_avx512);
  EXPECT_EQ(usual_cpu_path("default"), Path::reference);
  const char* level = std::getenv("ATEN_CPU_CAPABILITY");
  EXPECT_EQ(path_for(Device::cpu, std::nullopt), usual_cpu_path(level ? level : ""));
}

TEST(Path, TheEnvironmentIsReadAtEachCall) {
  const char* before = std::getenv("DEMI_KERNELS");
  const std::string kept = before ? before : "";
  setenv("DEMI_KERNELS", "reference", 1);
  EXPECT_EQ(cpu_kernels()->path, Path::reference);
  setenv("DEMI_KERNELS", "aten", 1);
  EXPECT_EQ(cpu_kernels(), nullptr);
  setenv("DEMI_KERNELS", "", 1);
  EXPECT_EQ(path_for(Device::cpu), path_for(Device::cpu, std::nullopt));
  if (before) {
    setenv("DEMI_KERNELS", kept.c_str(), 1);
  } else {
    unsetenv("DEMI_KERNELS");
  }
}

TEST(Path, AnUnknownNameSaysWhichAreKnown) {
  try {
    path_for(Device::cpu, "avx521");
    FAIL();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("avx521"), std::string::npos);
    EXPECT_NE(text.find("avx512"), std::string::npos);
    EXPECT_NE(text.find("reference"), std::string::npos);
  }
}

TEST(Path, EachTableKnowsItsName) {
  for (const Path path : {Path::reference, Path::avx2, Path::avx512}) {
    const CpuKernels* kernels = cpu_kernels(path);
    EXPECT_TRUE(!kernels || kernels->path == path);
  }
  EXPECT_EQ(cpu_kernels(Path::cuda), nullptr);
  EXPECT_EQ(cpu_kernels(Path::aten), nullptr);
}

// A plugin whose answer depends on the current device, as the real one's does.
TEST(Path, EachCudaDeviceAnswersForItself) {
  static int current = 0;
  const CudaKernels plugin{
      .decline = []() -> const char* { return current == 0 ? "too old a device" : nullptr; }};
  std::string why;
  EXPECT_EQ(kernels_of(plugin, &why), nullptr);
  EXPECT_EQ(why, "too old a device");
  current = 1;
  EXPECT_EQ(kernels_of(plugin, &why), &plugin);
  EXPECT_EQ(why, "one launch a pass, libdemi_cuda.so");
  current = 0;
  EXPECT_EQ(kernels_of(plugin), nullptr);
}

TEST(Path, CudaSaysWhyItDeclines) {
  std::string why;
  const CudaKernels* kernels = cuda_kernels(&why);
  EXPECT_FALSE(why.empty());
  EXPECT_EQ(paths()[0].usable, kernels != nullptr);
  if (!kernels) {
    EXPECT_EQ(path_for(Device::cuda, std::nullopt), Path::aten);
    EXPECT_THROW(path_for(Device::cuda, "cuda"), UsageError);
  }
}

}  // namespace
}  // namespace demi::kernels

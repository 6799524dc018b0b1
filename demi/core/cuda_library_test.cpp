#include "demi/core/cuda_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace demi {
namespace {

TEST(CudaLibrary, IsLoadedOrSaysWhyNot) {
  const CudaLibrary& library = load_cuda();
  EXPECT_NE(library.loaded, !library.reason.empty());
  EXPECT_EQ(&library, &load_cuda()) << "asked once";
  if (!dlopen("libcuda.so.1", RTLD_LAZY)) {
    EXPECT_NE(library.reason.find("driver"), std::string::npos) << library.reason;
  }
}

}  // namespace
}  // namespace demi

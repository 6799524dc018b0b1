#pragma once

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>

#include "demi/core/cuda_library.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi::optim::testing {

/// Tests that need a GPU, with a stream of their own (the default one cannot be captured).
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
    std::string why;
    if (!kernels::cuda_kernels(&why)) GTEST_SKIP() << why;
    const c10::Device device(c10::kCUDA, 0);
    guard_.emplace(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device));
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

/// A CUDA graph of what `work` puts on the current stream, through the driver's own interface, so
/// that the test needs no link to CUDA. Whatever waits for the stream within it fails the capture.
class Graph {
 public:
  template <class Work>
  explicit Graph(const Work& work) {
    constexpr int kRelaxed = 2;  // LibTorch's allocator may ask for memory
    check(call<int(void*, int)>("cuStreamBeginCapture_v2")(stream(), kRelaxed), "begin");
    work();
    void* graph = nullptr;
    check(call<int(void*, void**)>("cuStreamEndCapture")(stream(), &graph), "end");
    check(call<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&graph_,
                                                                                      graph, 0),
          "instantiate");
  }
  void replay() const {
    check(call<int(void*, void*)>("cuGraphLaunch")(graph_, stream()), "launch");
  }

 private:
  static void* stream() {
    const c10::Device device(c10::kCUDA, 0);
    return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device).native_handle();
  }
  template <class Function>
  static Function* call(const char* name) {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Function*>(dlsym(driver, name));
  }
  static void check(int error, const char* what) {
    if (error) throw std::runtime_error(std::string(what) + ": CUresult " + std::to_string(error));
  }

  void* graph_ = nullptr;
};

}  // namespace demi::optim::testing

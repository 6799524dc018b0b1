// demi::batch_norm_relu on a real GPU, whose kernels are asked for; skipped where there is none.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "demi/batch_norm/batch_norm.h"
#include "demi/core/cuda_library.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi {
namespace {

class GpuBatchNorm : public ::testing::Test {
 protected:
  GpuBatchNorm() { setenv("DEMI_BATCH_NORM", "cuda", 1); }
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
    std::string why;
    if (!kernels::cuda_kernels(&why)) GTEST_SKIP() << why;
  }
  ~GpuBatchNorm() override { unsetenv("DEMI_BATCH_NORM"); }
};

/// A layer on a device, and what a step through it gives.
struct GpuLayer {
  at::Tensor x, add, weight, bias, mean, variance;

  GpuLayer(at::ScalarType dtype, bool adds, c10::Device device) {
    torch::manual_seed(5);
    const auto pictures = [&] {
      return (at::randn({8, 70, 28, 27}) + 0.3)
          .to(dtype)
          .contiguous(at::MemoryFormat::ChannelsLast)
          .to(device)
          .requires_grad_();
    };
    x = pictures();
    if (adds) add = pictures();
    weight = (at::rand({70}) + 0.5).to(device).requires_grad_();
    bias = at::randn({70}).to(device).requires_grad_();
    mean = at::zeros({70}).to(device);
    variance = at::ones({70}).to(device);
  }
  std::vector<at::Tensor> step(const BatchNormRelu& options) const {
    BatchNormRelu o = options;
    o.add = add;
    const at::Tensor y = batch_norm_relu(x, weight, bias, mean, variance, o);
    std::vector<at::Tensor> of{x, weight, bias};
    if (add.defined()) of.push_back(add);
    const at::Tensor above =
        (at::arange(y.numel(), y.options().dtype(at::kFloat)).remainder(17) - 8)
            .view(y.sizes())
            .to(y.scalar_type());
    std::vector<at::Tensor> all = torch::autograd::grad({y}, of, {above});
    all.insert(all.end(), {y.detach(), mean, variance});
    return all;
  }
};

const MaxPooling kPoolsOfGpu[] = {{}, {{2, 2}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {1, 1}}};

TEST_F(GpuBatchNorm, HasTheBitsOfTheCpu) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const bool training : {true, false})
      for (const bool adds : {false, true})
        for (const MaxPooling& pool : kPoolsOfGpu) {
          SCOPED_TRACE(testing::Message()
                       << c10::toString(dtype) << training << adds << pool.size[0]);
          const BatchNormRelu options{.training = training, .pool = pool};
          const auto expected = GpuLayer(dtype, adds, c10::kCPU).step(options);
          const auto seen = GpuLayer(dtype, adds, c10::Device(c10::kCUDA, 0)).step(options);
          for (std::size_t i = 0; i < seen.size(); ++i)
            EXPECT_TRUE(seen[i].cpu().equal(expected[i])) << i;
        }
}

}  // namespace
}  // namespace demi

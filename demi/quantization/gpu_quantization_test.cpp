// Codes and layers on a real GPU; skipped where there is none.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/cuda_library.h"
#include "demi/quantization/hadamard.h"
#include "demi/quantization/layers.h"
#include "demi/quantization/native_products.h"
#include "demi/quantization/quantization.h"

namespace demi::quantization {
namespace {

class GpuQuantization : public testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
    torch::manual_seed(1);
  }
};

std::string host_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return "";
  const at::Tensor here = tensor.view(at::kByte).cpu();
  return {static_cast<const char*>(here.const_data_ptr()), here.nbytes()};
}

TEST_F(GpuQuantization, CodesScalesAndNumbersAreTheCpus) {
  const at::Tensor x = torch::randn({200, 333}).mul_(torch::randn({333}).exp());
  std::vector<Options> all;
  for (const bool down : {false, true}) {
    for (const NarrowFormat format : {NarrowFormat::e4m3, NarrowFormat::e5m2, NarrowFormat::e2m1})
      for (const Scaling scaling :
           {Scaling::tensor, Scaling::row, Scaling::row_power_of_two, Scaling::mx_ceil,
            Scaling::mx_floor, Scaling::block_128, Scaling::square_128})
        all.push_back({format, scaling, down});
    for (const Scaling scaling : {Scaling::nv, Scaling::nv_square, Scaling::nv_torchao})
      all.push_back({NarrowFormat::e2m1, scaling, down});
  }
  for (Options options : all)
    for (const bool by_chance : {false, true}) {
      if (by_chance) options.by_chance = {1, 2, 3, 4};
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const Quantized here = quantize(x.to(dtype), options),
                        there = quantize(x.to(dtype).cuda(), options);
        const auto where = ::testing::Message()
                           << int(options.format) << int(options.scaling) << options.down;
        EXPECT_EQ(host_bytes(here.codes), host_bytes(there.codes)) << where;
        EXPECT_EQ(host_bytes(here.scales), host_bytes(there.scales)) << where;
        EXPECT_EQ(host_bytes(here.tensor_scale), host_bytes(there.tensor_scale)) << where;
        EXPECT_TRUE(dequantize(there, dtype).cpu().equal(dequantize(here, dtype))) << where;
      }
    }
  EXPECT_TRUE(hadamard(x.cuda(), true).cpu().equal(hadamard(x, true)));
}

struct LayerRun {
  std::vector<at::Tensor> results;  // y, dx, dweight, in FP32 on the CPU
};

LayerRun run_layer(const Recipe& recipe, at::Device device) {
  torch::manual_seed(2);
  const auto how = std::make_shared<QuantizedWeight>(
      recipe, 0, std::numeric_limits<std::int64_t>::max(), std::make_shared<RecipeRun>());
  const at::Tensor x = torch::randn({64, 96}).to(at::kBFloat16).to(device).requires_grad_(),
                   weight = torch::randn({32, 96}).to(device).requires_grad_(),
                   dy = torch::randn({64, 32}).to(at::kBFloat16).to(device);
  const at::Tensor y = linear(x, weight, std::nullopt, how, at::kBFloat16);
  y.backward(dy);
  LayerRun run;
  for (const at::Tensor& one : {y.detach(), x.grad(), weight.grad()})
    run.results.push_back(one.to(at::kCPU, at::kFloat));
  return run;
}

void expect_alike(const LayerRun& one, const LayerRun& other, const Recipe& recipe) {
  for (std::size_t i = 0; i < one.results.size(); ++i)
    EXPECT_LT((one.results[i] - other.results[i]).norm().item<float>(),
              one.results[i].norm().item<float>() / 512)
        << recipe.name << " " << i;
}

TEST_F(GpuQuantization, ALayerComputesWhatItDoesOnACpu) {
  for (const Recipe& recipe : recipes())
    expect_alike(run_layer(recipe, at::kCPU), run_layer(recipe, at::kCUDA), recipe);
}

TEST_F(GpuQuantization, ProductsInHardwareGiveWhatTheEmulationGives) {
  for (const auto* name : {"fp8", "fp8:rowwise"}) {
    const Recipe& recipe = parse_recipe(name);
    const LayerRun emulated = run_layer(recipe, at::kCUDA);
    set_native_products(true);
    const LayerRun native = run_layer(recipe, at::kCUDA);
    set_native_products(false);
    expect_alike(emulated, native, recipe);
  }
}

}  // namespace
}  // namespace demi::quantization

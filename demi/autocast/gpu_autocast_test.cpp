// Regions on a real GPU; skipped where there is none.
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/cuda.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cstdlib>

#include "demi/autocast/autocast.h"
#include "demi/autocast/custom.h"
#include "demi/autocast/slow_dtype.h"
#include "demi/core/cuda_library.h"
#include "demi/weights/recorded_warnings_testing.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

class GpuAutocast : public testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
    torch::manual_seed(1);
  }
};

std::vector<torch::Dtype> dtypes_in_hardware() {
  std::vector<torch::Dtype> dtypes;
  for (const auto dtype : {torch::kHalf, torch::kBFloat16})
    if (why_slow(torch::kCUDA, dtype).empty()) dtypes.push_back(dtype);
  return dtypes;
}

struct Run {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

template <class Rnn>
Run run(Rnn& rnn, const at::Tensor& x) {
  rnn->zero_grad();
  auto output = std::get<0>(rnn->forward(x));
  output.to(torch::kFloat).pow(2).sum().backward();
  Run result{output.detach().to(torch::kFloat), {}};
  for (const auto& p : rnn->parameters()) result.gradients.push_back(p.grad().to(torch::kFloat));
  return result;
}

// The module cast by hand lays out its own buffer of 16-bit weights.
template <class Rnn, class Options>
void expect_as_cast_by_hand(const Options& options, torch::Dtype dtype) {
  Rnn rnn(options);
  rnn->to(torch::kCUDA);
  const auto x = torch::randn({7, 5, 12}, torch::kCUDA);
  Run ours;
  {
    const Autocast region(torch::kCUDA, dtype);
    weights::reset_stats();
    ours = run(rnn, x);
    EXPECT_LE(weights::stats().casts, static_cast<std::int64_t>(rnn->parameters().size()));
  }
  EXPECT_EQ(rnn->parameters()[0].grad().scalar_type(), torch::kFloat);
  rnn->to(dtype);
  const Run theirs = run(rnn, x.to(dtype));
  EXPECT_TRUE(torch::allclose(ours.output, theirs.output, 1e-2, 1e-2));
  ASSERT_EQ(ours.gradients.size(), theirs.gradients.size());
  for (std::size_t i = 0; i < ours.gradients.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours.gradients[i], theirs.gradients[i], 5e-2, 5e-2)) << i;
}

TEST_F(GpuAutocast, RecurrentLayersRunAsThoseCastByHand) {
  for (const auto dtype : dtypes_in_hardware())
    for (const int layers : {1, 2})
      for (const bool both : {false, true})
        for (const bool bias : {true, false}) {
          SCOPED_TRACE(std::string(c10::toString(dtype)) + " " + std::to_string(layers) +
                       (both ? " both directions" : "") + (bias ? "" : " without biases"));
          expect_as_cast_by_hand<torch::nn::LSTM>(
              torch::nn::LSTMOptions(12, 16).num_layers(layers).bidirectional(both).bias(bias),
              dtype);
          expect_as_cast_by_hand<torch::nn::GRU>(
              torch::nn::GRUOptions(12, 16).num_layers(layers).bidirectional(both).bias(bias),
              dtype);
        }
}

struct LooksInBackward : torch::autograd::Function<LooksInBackward> {
  static inline torch::Dtype product;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const auto x = torch::ones({8, 8}, torch::kCUDA);
    product = torch::mm(x, x).scalar_type();
    return {gradients[0]};
  }
};

TEST_F(GpuAutocast, TheDevicesThreadRunsUnderTheRegionsPolicy) {
  OpPolicy policy;
  policy.set("mm", OpCategory::fp32);
  const auto backward = [](const AutocastOptions& options) {
    const Autocast region(torch::kCUDA, options);
    LooksInBackward::apply(torch::ones({4}, torch::kCUDA).requires_grad_()).sum().backward();
    return LooksInBackward::product;
  };
  EXPECT_EQ(backward({.dtype = torch::kHalf, .policy = policy}), torch::kFloat);
  EXPECT_EQ(backward({.dtype = torch::kHalf}), torch::kHalf);
}

TEST_F(GpuAutocast, BinaryCrossEntropyIsRefused) {
  const Autocast region(torch::kCUDA, torch::kHalf);
  const auto p = torch::rand({4}, torch::kCUDA);
  EXPECT_ANY_THROW(torch::binary_cross_entropy(p, torch::ones_like(p)));
  EXPECT_EQ(torch::binary_cross_entropy_with_logits(p.to(torch::kHalf), torch::ones_like(p))
                .scalar_type(),
            torch::kFloat);
}

// Programs that begin on CUDA, each in a process of its own: it ends with 0 if all is right, with
// 77 if there is nothing to test here.
class FirstOnCuda : public testing::Test {
 protected:
  static constexpr int kNothingToSee = 77;

  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void expect_right(void (*statement)()) {
    int code = -1;
    const auto note = [&](int status) {
      code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      return code == 0 || code == kNothingToSee;
    };
    EXPECT_EXIT(statement(), note, "");
    if (code == kNothingToSee) GTEST_SKIP() << "no CUDA device with bf16, or no LibTorch for it";
  }
  [[noreturn]] static void end_as(bool right) { std::exit(right ? 0 : 1); }
};

// cuDNN's kernel of LibTorch's own, registered when its CUDA part is loaded, is for fp16 alone.
class GpuLateLoading : public FirstOnCuda {
 protected:
  static bool lstm_runs_in_bf16() {
    torch::nn::LSTM rnn(4, 4);
    rnn->to(torch::kCUDA);
    const Autocast region(torch::kCUDA, torch::kBFloat16);
    const auto output = std::get<0>(rnn->forward(torch::randn({3, 2, 4}, torch::kCUDA)));
    return output.scalar_type() == torch::kBFloat16;
  }
  static bool has_bf16() {
    return torch::cuda::is_available() && why_slow(torch::kCUDA, torch::kBFloat16).empty();
  }
};

TEST_F(GpuLateLoading, TheFirstRegionLoadsLibTorchsPart) {
  expect_right(+[] {
    { const Autocast early(torch::kCUDA, torch::kBFloat16); }
    if (!has_bf16()) std::exit(kNothingToSee);
    end_as(lstm_runs_in_bf16());
  });
}

TEST_F(GpuLateLoading, LibTorchsPartThatIsLoadedAfterTheFirstRegionStaysBehindDemis) {
  expect_right(+[] {
    setenv("DEMI_CUDA_LIBRARY", "off", 1);
    { const Autocast early(torch::kCUDA, torch::kBFloat16); }
    if (!dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL) || !has_bf16())
      std::exit(kNothingToSee);
    end_as(lstm_runs_in_bf16());
  });
}

torch::Dtype seen_by_late_library;
at::Tensor late_library_kernel(const at::Tensor& x) {
  seen_by_late_library = x.scalar_type();
  return x.clone();
}
at::Tensor late_library_autocast(const at::Tensor& x) { return x.to(torch::kDouble); }

TEST_F(GpuLateLoading, KernelsOfAnOpLibraryFollowARuleAndKeepTheirOwn) {
  if (!load_cuda().loaded || !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  { const Autocast early(torch::kCUDA, torch::kHalf); }  // makes the tables
  static torch::Library ops(torch::Library::DEF, "demi_gpu_late", std::nullopt, __FILE__, __LINE__);
  ops.def("with_rule(Tensor x) -> Tensor");
  ops.def("with_kernel(Tensor x) -> Tensor");
  static torch::Library kernels(torch::Library::IMPL, "demi_gpu_late", c10::DispatchKey::CUDA,
                                __FILE__, __LINE__);
  kernels.impl("with_rule", TORCH_FN(late_library_kernel));
  static torch::Library autocast(torch::Library::IMPL, "demi_gpu_late",
                                 c10::DispatchKey::AutocastCUDA, __FILE__, __LINE__);
  autocast.impl("with_kernel", TORCH_FN(late_library_autocast));

  const auto in_region = [x = torch::ones({4}, torch::kCUDA)](const char* op) {
    const Autocast region(torch::kCUDA, torch::kHalf);
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(op, "")
        .typed<at::Tensor(const at::Tensor&)>()
        .call(x);
  };
  in_region("demi_gpu_late::with_rule");
  EXPECT_EQ(seen_by_late_library, torch::kFloat) << "no rule yet";
  register_autocast("demi_gpu_late::with_rule", OpCategory::lower_precision, torch::kCUDA);
  in_region("demi_gpu_late::with_rule");
  EXPECT_EQ(seen_by_late_library, torch::kHalf);
  EXPECT_EQ(in_region("demi_gpu_late::with_kernel").scalar_type(), torch::kDouble);
}

class GpuSlowDtype : public FirstOnCuda {
 protected:
  // By LibTorch's answer for cuDNN, which asks the CUDA runtime where demi asks the driver.
  static std::vector<int> devices_without_bf16() {
    std::vector<int> devices;
    for (int i = 0; i < torch::cuda::device_count(); ++i) {
      const c10::DeviceGuard guard(c10::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(i)));
      if (!at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8())
        devices.push_back(i);
    }
    return devices;
  }

  static bool warnings_are(const weights::testing::RecordedWarnings& warnings) {
    std::int64_t expected = 0;
    for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
      const std::string why = why_slow(torch::kCUDA, dtype);
      if (why.empty()) continue;
      ++expected;
      if (warnings.holding(why) != 1) return false;
    }
    return warnings.holding("[autocast.Autocast]") == expected;
  }
};

TEST_F(GpuSlowDtype, OnEachDeviceIsNamed) {
  if (!load_cuda().loaded || !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  if (!torch::cuda::cudnn_is_available()) GTEST_SKIP() << "LibTorch answers for cuDNN alone";
  std::string devices;
  for (const int i : devices_without_bf16())
    devices += (devices.empty() ? "" : ", ") + std::to_string(i);
  const std::string why = why_slow(torch::kCUDA, torch::kBFloat16);
  EXPECT_EQ(why.empty(), devices.empty()) << why;
  if (torch::cuda::device_count() > 1 && !devices.empty()) {
    EXPECT_THAT(why, testing::HasSubstr("(cuda device " + devices + ")"));
  }
}

TEST_F(GpuSlowDtype, IsWarnedOfByTheFirstRegionAndNoOther) {
  expect_right(+[] {
    const weights::testing::RecordedWarnings warnings;
    const auto enter_both = [] {
      for (const auto dtype : {torch::kHalf, torch::kBFloat16})
        const Autocast region(torch::kCUDA, dtype);
    };
    enter_both();
    if (!torch::cuda::is_available()) std::exit(kNothingToSee);
    const bool right = warnings_are(warnings);
    enter_both();
    end_as(right && warnings_are(warnings));
  });
}

}  // namespace
}  // namespace demi

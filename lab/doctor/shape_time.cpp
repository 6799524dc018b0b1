#include "lab/doctor/shape_time.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <functional>
#include <memory>
#include <optional>

#include "demi/autocast/autocast.h"
#include "demi/backends/backends.h"
#include "lab/bench/timing.h"

namespace demi::doctor {
namespace {

constexpr int kLeastRepeats = 5;
constexpr double kLeastMs = 20;  // of all repeats together: small products differ by much

std::optional<at::ScalarType> low_dtype(const std::string& dtype) {
  if (dtype == "fp16") return at::kHalf;
  if (dtype == "bf16") return at::kBFloat16;
  return std::nullopt;
}

double least_ms(const std::string& dtype, c10::Device device, const std::function<void()>& work) {
  const auto low = low_dtype(dtype);
  const BackendsGuard backends({.cuda_matmul_allow_tf32 = dtype == "tf32",
                                .cudnn_allow_tf32 = dtype == "tf32",
                                .mkldnn_fp32_precision = "ieee"});
  const Autocast region(device.type(), AutocastOptions{.dtype = low, .enabled = low.has_value()});
  work();
  bench::Times times;
  double sum = 0;
  for (int i = 0; i < kLeastRepeats || sum < kLeastMs; ++i) {
    const double ms = bench::milliseconds(device, work);
    times.add(ms);
    sum += ms;
  }
  return times.least();
}

at::TensorOptions options_of(const std::string& dtype, c10::Device device) {
  return at::TensorOptions().device(device).dtype(low_dtype(dtype).value_or(at::kFloat));
}

}  // namespace

double product_ms(const std::string& dtype, int64_t m, int64_t k, int64_t n, c10::Device device) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({m, k}, options_of(dtype, device));
  const at::Tensor b = at::ones({k, n}, options_of(dtype, device));
  return least_ms(dtype, device, [&] { at::mm(a, b); });
}

double convolution_ms(const std::string& dtype, bool channels_last, c10::Device device) {
  const at::NoGradGuard no_grad;
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const auto options = options_of(dtype, device);
  const at::Tensor input = at::ones({8, 64, 56, 56}, options).contiguous(format);
  const at::Tensor weight = at::ones({64, 64, 3, 3}, options).contiguous(format);
  return least_ms(dtype, device, [&] { at::conv2d(input, weight, {}, 1, 1); });
}

// Memory comes from mmap itself: the program's own malloc keeps its memory.
double fill_ms(bool fresh) {
  constexpr size_t kBytes = 64 << 20;
  const auto map = [] {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "no memory for a tensor of 64 MiB");
    return std::unique_ptr<void, void (*)(void*)>(memory, [](void* m) { munmap(m, kBytes); });
  };
  const auto fill = [](void* memory) {
    at::from_blob(memory, {kBytes / sizeof(float)}, at::kFloat).fill_(1);
  };
  if (fresh) return least_ms("fp32", c10::kCPU, [&] { fill(map().get()); });
  const auto kept = map();
  return least_ms("fp32", c10::kCPU, [&] { fill(kept.get()); });
}

}  // namespace demi::doctor

#include "lab/bench/square_product.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "demi/autocast/autocast.h"
#include "demi/backends/backends.h"
#include "demi/core/error.h"

namespace demi::bench {
namespace {

constexpr int64_t kCheckedRows = 8;

at::ScalarType dtype_of(const ProductKind& kind) {
  if (kind.dtype == "fp16") return at::kHalf;
  if (kind.dtype == "bf16") return at::kBFloat16;
  if (kind.dtype == "fp32" || kind.dtype == "tf32") return at::kFloat;
  refuse({.where = "bench.SquareProduct",
          .what = "no such dtype",
          .seen = kind.dtype,
          .accepted = "fp32, tf32, fp16, bf16"});
}

// The settings that the dtype's name means, independent of the process's own.
Backends backends_of(const ProductKind& kind) {
  Backends backends;
  backends.cuda_matmul_allow_tf32 = kind.dtype == "tf32";
  backends.mkldnn_fp32_precision = "ieee";
  return backends;
}

}  // namespace

std::vector<ProductKind> product_kinds(c10::Device device) {
  std::vector<ProductKind> all{{"fp32"}};
  if (device.is_cuda()) all.push_back({"tf32"});
  for (const char* dtype : {"fp16", "bf16"})
    for (const bool in_region : {false, true}) all.push_back({dtype, in_region});
  return all;
}

SquareProduct::SquareProduct(ProductKind kind, int64_t size, c10::Device device)
    : kind_(std::move(kind)), size_(size) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  a_ = at::randn({size, size}, options).to(dtype_of(kind_));
  b_ = at::randn({size, size}, options).to(dtype_of(kind_));
}

void SquareProduct::run(int64_t times) {
  const at::NoGradGuard no_grad;
  const BackendsGuard backends(backends_of(kind_));
  const c10::DeviceType device = a_.device().type();
  const bool is_16_bit = a_.scalar_type() != at::kFloat;
  const Autocast region(
      device, AutocastOptions{.dtype = is_16_bit ? std::optional(a_.scalar_type()) : std::nullopt,
                              .enabled = kind_.in_region});
  for (int64_t i = 0; i < times; ++i)
    result_ = kind_.casts ? at::mm(a_.to(at::kFloat), b_.to(at::kFloat)).to(a_.scalar_type())
                          : at::mm(a_, b_);
}

double SquareProduct::error() {
  const at::NoGradGuard no_grad;
  run();
  const int64_t rows = std::min(kCheckedRows, size_);
  const at::Tensor exact = at::mm(a_.narrow(0, 0, rows).to(at::kDouble), b_.to(at::kDouble));
  const at::Tensor seen = result_.narrow(0, 0, rows).to(at::kDouble);
  return ((seen - exact).norm() / exact.norm().clamp_min(1e-300)).item<double>();
}

double SquareProduct::flop() const {
  const auto n = static_cast<double>(size_);
  return 2 * n * n * n;
}

double SquareProduct::bytes() const {
  const auto n = static_cast<double>(size_);
  return 3 * n * n * static_cast<double>(a_.element_size());
}

double error_bound(const ProductKind& kind) {
  if (kind.dtype == "fp32") return 0x1p-18;
  return kind.dtype == "bf16" ? 0x1p-6 : 0x1p-9;
}

}  // namespace demi::bench

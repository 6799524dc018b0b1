#include "demi/quantization/quantization.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/quantize.h"
#include "demi/quantization/require.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/native_stream.h"
#include "demi/tensor/parallel.h"

namespace demi::quantization {
namespace {

using kernels::Quantization;

// Roundings of optimizer states draw from the same seed; these have keys of their own.
constexpr std::uint64_t kOwnStream = 0x71A4C1F3D2E5B697u;

void require_quantizable(const at::Tensor& values, const Options& options) {
  constexpr const char* kWhere = "quantization.quantize";
  require_dtype(kWhere, values.scalar_type());
  require_dimensions(kWhere, values);
  if (kernels::is_nv(options.scaling) && options.format != NarrowFormat::e2m1)
    throw UsageError({.where = kWhere,
                      .what = "NVFP4's scales are made for numbers of 4 bits",
                      .seen = options.format == NarrowFormat::e4m3 ? "e4m3" : "e5m2",
                      .accepted = "e2m1",
                      .advice = "use Scaling::mx_ceil for 8 bits"});
  if (!options.by_chance) return;
  const auto require_below = [](const char* what, std::uint32_t seen, std::uint32_t bound) {
    if (seen >= bound)
      throw UsageError({.where = kWhere,
                        .what = what,
                        .seen = std::to_string(seen),
                        .accepted = "0 to " + std::to_string(bound - 1)});
  };
  require_below("RandomRounding::tensor is out of range", options.by_chance->tensor, 1U << 30);
  require_below("RandomRounding::product is out of range", options.by_chance->product, 4);
}

at::ScalarType code_dtype(NarrowFormat format) {
  switch (format) {
    case NarrowFormat::e4m3:
      return at::kFloat8_e4m3fn;
    case NarrowFormat::e5m2:
      return at::kFloat8_e5m2;
    case NarrowFormat::e2m1:
      return at::ScalarType::Float4_e2m1fn_x2;
  }
  return at::kByte;
}

at::ScalarType scale_dtype(Scaling scaling) {
  if (kernels::is_nv(scaling)) return at::kFloat8_e4m3fn;
  return kernels::has_fp32_scales(scaling) ? at::kFloat : at::ScalarType::Float8_e8m0fnu;
}

/// What a call needs of shapes; pointers are set where the call is made.
Quantization matrix_of(const std::vector<std::int64_t>& sizes, NarrowFormat format, Scaling scaling,
                       bool down) {
  Quantization q{};
  q.format = format;
  q.scaling = scaling;
  q.down = down;
  q.columns = sizes.back();
  q.rows = 1;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) q.rows *= sizes[i];
  return q;
}

std::vector<std::int64_t> scale_sizes(const Quantization& q) {
  const kernels::ScaleGrid grid = kernels::grid_of(q);
  if (kernels::block_of(q.scaling) == 0) return {grid.rows * grid.columns};
  return {grid.rows, grid.columns};
}

/// A Quantized may have been put together by a program, and kernels read as its sizes say.
at::Tensor required(const at::Tensor& tensor, const char* what, at::IntArrayRef sizes,
                    at::ScalarType dtype, c10::Device device) {
  if (tensor.defined() && tensor.sizes() == sizes && tensor.scalar_type() == dtype &&
      tensor.device() == device)
    return tensor.contiguous();
  const auto words = [](at::IntArrayRef of, at::ScalarType in, c10::Device on) {
    return c10::str(of, " of ", c10::toString(in), " on ", on);
  };
  throw UsageError(
      {.where = "quantization.dequantize",
       .what = std::string(what) + " are not those of a tensor of these sizes and this format",
       .seen = tensor.defined() ? words(tensor.sizes(), tensor.scalar_type(), tensor.device())
                                : "an undefined tensor",
       .accepted = words(sizes, dtype, device),
       .advice = "pass what quantize() gave"});
}

void require_consistent(Quantized& quantized, const Quantization& q) {
  const c10::Device device = quantized.codes.defined() ? quantized.codes.device() : at::kCPU;
  quantized.codes =
      required(quantized.codes, "codes", {q.rows, kernels::code_bytes(q.format, q.columns)},
               code_dtype(q.format), device);
  quantized.scales =
      required(quantized.scales, "scales", scale_sizes(q), scale_dtype(q.scaling), device);
  if (kernels::is_nv(q.scaling))
    quantized.tensor_scale =
        required(quantized.tensor_scale, "tensor_scale", {1}, at::kFloat, device);
}

/// The kernels of the tensors' device: one of the two, or none where the CPU has to do it.
struct KernelsOfDevice {
  const kernels::CpuKernels* cpu = nullptr;
  const kernels::CudaKernels* cuda = nullptr;
};

// DEMI_KERNELS=aten has no form of its own here: the reference gives the same bits.
const kernels::CpuKernels* kernels_of_cpu() {
  const kernels::CpuKernels* chosen = kernels::cpu_kernels();
  return chosen ? chosen : kernels::cpu_kernels(kernels::Path::reference);
}

KernelsOfDevice kernels_for(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {.cpu = kernels_of_cpu()};
  if (tensor.is_cuda() && kernels::path_for(kernels::Device::cuda) == kernels::Path::cuda)
    return {.cuda = kernels::cuda_kernels()};
  return {};
}

void require_launch(const char* complaint) {
  if (complaint)
    throw DeviceError(
        {.where = "quantization.quantize", .what = "CUDA refuses a launch", .seen = complaint});
}

std::int64_t grain_of(const Quantization& q) {
  const std::int64_t pieces = kernels::pieces_of(q),
                     elements = std::max<std::int64_t>(1, q.rows * q.columns);
  return std::max<std::int64_t>(1, tensor::kElementsPerThread * pieces / elements);
}

/// The bits of the greatest magnitude: the same in any order.
std::uint32_t greatest_of(const kernels::CpuKernels& kernels, const Quantization& q) {
  const std::int64_t n = q.rows * q.columns;
  std::atomic<std::uint32_t> greatest{0};
  at::parallel_for(0, n, tensor::kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
    const auto* from = static_cast<const std::byte*>(q.from) + begin * bytes_of(q.storage);
    const std::uint32_t here = kernels.greatest_magnitude(from, q.storage, end - begin);
    std::uint32_t seen = greatest.load(std::memory_order_relaxed);
    while (seen < here && !greatest.compare_exchange_weak(seen, here, std::memory_order_relaxed)) {
    }
  });
  return greatest.load();
}

/// Of each column, likewise.
std::vector<std::uint32_t> greatest_of_columns(const kernels::CpuKernels& kernels,
                                               const Quantization& q) {
  std::vector<std::uint32_t> greatest(
      static_cast<std::size_t>(kernels::greatest_of_columns_words(q)));
  std::mutex mutex;
  const std::int64_t grain = std::max<std::int64_t>(1, tensor::kElementsPerThread / q.columns);
  at::parallel_for(0, q.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint32_t> here(greatest.size());
    kernels.raise_greatest_of_columns(q, begin, end, here.data());
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < here.size(); ++i) greatest[i] = std::max(greatest[i], here[i]);
  });
  return greatest;
}

void quantize_on_cpu(const kernels::CpuKernels& kernels, Quantization q) {
  std::vector<std::uint32_t> greatest(1);
  if (kernels::needs_greatest_of_tensor(q.scaling)) greatest[0] = greatest_of(kernels, q);
  if (kernels::needs_greatest_of_columns(q)) greatest = greatest_of_columns(kernels, q);
  q.greatest = greatest.data();
  at::parallel_for(0, kernels::pieces_of(q), grain_of(q),
                   [&](std::int64_t begin, std::int64_t end) { kernels.quantize(q, begin, end); });
}

void quantize_on_cuda(const kernels::CudaKernels& kernels, Quantization q,
                      const at::Tensor& codes) {
  const at::Tensor greatest =
      at::empty({kernels::greatest_words(q)}, codes.options().dtype(at::kInt));
  q.greatest = static_cast<std::uint32_t*>(greatest.mutable_data_ptr());
  require_launch(kernels.quantize(q, tensor::native_stream(codes.device())));
}

Quantized on_device_of(Quantized quantized, const at::Tensor& like) {
  for (at::Tensor* one : {&quantized.codes, &quantized.scales, &quantized.tensor_scale})
    if (one->defined()) *one = one->to(like.device());
  return quantized;
}

}  // namespace

void require_dtype(const char* where, at::ScalarType dtype) {
  if (dtype == at::kFloat || tensor::is_16_bit(dtype)) return;
  throw UsageError({.where = where,
                    .what = "the dtype is neither FP32 nor of 16 bits",
                    .seen = tensor::name_of(dtype),
                    .accepted = "fp32, bf16, fp16",
                    .advice = "convert the tensor with to(torch::kFloat)"});
}

void require_dimensions(const char* where, const at::Tensor& values) {
  if (values.dim() != 0) return;
  throw UsageError({.where = where,
                    .what = "a tensor without dimensions has no blocks",
                    .seen = "()",
                    .accepted = "one dimension or more"});
}

Quantized quantize(const at::Tensor& values, const Options& options) {
  require_quantizable(values, options);
  const c10::OptionalDeviceGuard on_device(values.device());
  const KernelsOfDevice kernels = kernels_for(values);
  if (!kernels.cpu && !kernels.cuda)
    return on_device_of(quantize(values.detach().cpu(), options), values);
  const at::Tensor from = values.detach().contiguous();
  Quantized result{.sizes = values.sizes().vec(),
                   .format = options.format,
                   .scaling = options.scaling,
                   .down = options.down};
  Quantization q = matrix_of(result.sizes, options.format, options.scaling, options.down);
  const auto empty = [&](std::vector<std::int64_t> sizes, at::ScalarType dtype) {
    return at::empty(sizes, from.options().dtype(dtype));
  };
  result.codes = empty({q.rows, kernels::code_bytes(q.format, q.columns)}, code_dtype(q.format));
  result.scales = empty(scale_sizes(q), scale_dtype(q.scaling));
  if (kernels::is_nv(q.scaling))
    result.tensor_scale = at::ones({1}, from.options().dtype(at::kFloat));
  if (from.numel() == 0) {  // scales of nothing
    if (result.scales.scalar_type() == at::kFloat) result.scales.fill_(1);
    return result;
  }
  q.from = from.const_data_ptr();
  q.storage = tensor::storage_of(from.scalar_type());
  q.codes = static_cast<std::uint8_t*>(result.codes.mutable_data_ptr());
  q.scales = result.scales.mutable_data_ptr();
  if (result.tensor_scale.defined()) q.tensor_scale = result.tensor_scale.mutable_data_ptr<float>();
  if (options.by_chance) {
    const RandomRounding& key = *options.by_chance;
    q.by_chance = true;
    q.key = {key.seed ^ kOwnStream, key.tensor, key.product, key.step};
  }
  kernels.cpu ? quantize_on_cpu(*kernels.cpu, q) : quantize_on_cuda(*kernels.cuda, q, result.codes);
  return result;
}

at::Tensor dequantize(const Quantized& given, at::ScalarType dtype) {
  require_dtype("quantization.dequantize", dtype);
  Quantized quantized = given;
  require(!quantized.sizes.empty() &&
              std::ranges::all_of(quantized.sizes, [](auto n) { return n >= 0; }),
          {.where = "quantization.dequantize",
           .what = "the sizes are those of no quantized tensor",
           .seen = c10::str(at::IntArrayRef(quantized.sizes)),
           .accepted = "one dimension or more"});
  Quantization q = matrix_of(quantized.sizes, quantized.format, quantized.scaling, quantized.down);
  require_consistent(quantized, q);
  const c10::OptionalDeviceGuard on_device(quantized.codes.device());
  const KernelsOfDevice kernels = kernels_for(quantized.codes);
  if (!kernels.cpu && !kernels.cuda) {
    Quantized here = quantized;
    for (at::Tensor* one : {&here.codes, &here.scales, &here.tensor_scale})
      if (one->defined()) *one = one->cpu();
    return dequantize(here, dtype).to(quantized.codes.device());
  }
  const at::Tensor to = at::empty(quantized.sizes, quantized.codes.options().dtype(dtype));
  if (to.numel() == 0) return to;
  const auto data_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? const_cast<void*>(tensor.const_data_ptr()) : nullptr;
  };
  q.to = to.mutable_data_ptr();
  q.storage = tensor::storage_of(dtype);
  q.codes = static_cast<std::uint8_t*>(data_of(quantized.codes));
  q.scales = data_of(quantized.scales);
  q.tensor_scale = static_cast<float*>(data_of(quantized.tensor_scale));
  if (kernels.cpu)
    at::parallel_for(
        0, kernels::pieces_of(q), grain_of(q),
        [&](std::int64_t begin, std::int64_t end) { kernels.cpu->dequantize(q, begin, end); });
  else
    require_launch(kernels.cuda->dequantize(q, tensor::native_stream(to.device())));
  return to;
}

}  // namespace demi::quantization

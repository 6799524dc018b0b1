#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "demi/autocast/op_table.h"
#include "demi/autocast/parts.h"
#include "demi/autocast/region_rules.h"
#include "demi/batch_norm/call.h"
#include "demi/batch_norm/engine.h"
#include "demi/batch_norm/synchronised_layers.h"
#include "demi/core/error.h"
#include "demi/core/local_pass.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/path.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"

namespace demi::batch_norm {
namespace {

// LibTorch's kernel is as fast if planes are smaller.
constexpr std::int64_t kSmallestPlane = 64;

/// (C) FP32 without gaps on the input's device, or undefined.
bool is_ordinary_of(const at::Tensor& channels, const at::Tensor& input) {
  return !channels.defined() ||
         (channels.scalar_type() == at::kFloat && channels.is_contiguous() &&
          channels.numel() == input.size(1) && channels.device() == input.device() &&
          products::is_ordinary({&channels}, input.device().type()));
}

}  // namespace

bool is_channels_last(const at::Tensor& x) {
  const bool is = x.is_contiguous(at::MemoryFormat::ChannelsLast);
  return is && (x.size(1) > 1 || !x.is_contiguous());
}

bool has_rules(const Call& call) {
  if (parts_in_use())
    for (const at::Tensor* tensor : {&call.weight, &call.bias})
      if (tensor->defined() && dtype_of_part(*tensor)) return true;
  static const std::array<int, 4> ops{op_number("batch_norm"), op_number("add.Tensor"),
                                      op_number("relu"), op_number("max_pool2d")};
  return region_has_rule(call.input.device().type(), ops);
}

bool wants_cuda_kernels() {
  const char* const given = std::getenv("DEMI_BATCH_NORM");
  const std::string_view word = given ? given : "";
  if (word.empty() || word == "cuda") return !word.empty();
  refuse({.where = "batch_norm.batch_norm_relu",
          .what = "DEMI_BATCH_NORM has a value that is not known",
          .seen = std::string(word),
          .accepted = "cuda"});
}

namespace {

/// The engine, chosen by the input alone.
Engine engine_of(const at::Tensor& x) {
  if (x.is_cpu()) return {.cpu = kernels::cpu_kernels()};
  if (!x.is_cuda() || !is_channels_last(x) || !wants_cuda_kernels()) return {};
  const c10::DeviceGuard guard(x.device());  // not a context on the machine's first GPU
  const bool ours = kernels::path_for(kernels::Device::cuda) == kernels::Path::cuda;
  return {.device = ours ? kernels::cuda_kernels() : nullptr};
}

}  // namespace

Engine engine_for(const Call& call) {
  const BatchNormRelu& o = call.options;
  const at::Tensor& x = call.input;
  const auto dtype = x.scalar_type();
  if (x.dim() != 4 || !(dtype == at::kFloat || tensor::is_16_bit(dtype)) ||
      !products::is_ordinary({&x, &o.add}, x.device().type()))
    return {};
  if (o.add.defined() && o.add.sizes() != x.sizes()) return {};
  if (!is_channels_last(x) &&
      !(x.is_contiguous() && (x.size(1) == 1 || x.size(2) * x.size(3) >= kSmallestPlane)))
    return {};
  for (const at::Tensor* one : {&call.weight, &call.bias, &call.running_mean, &call.running_var})
    if (!is_ordinary_of(*one, x)) return {};
  if (call.running_mean.defined() != call.running_var.defined()) return {};
  const bool is_synchronised = o.training && call.running_mean.defined() && !is_local_pass() &&
                               group_of(call.running_mean) != nullptr;
  return is_synchronised || has_rules(call) ? Engine{} : engine_of(x);
}

bool pools_by_kernels(const Call& call) {
  const MaxPooling& pool = call.options.pool;
  const bool channels_last = is_channels_last(call.input);
  for (std::size_t d = 0; d < 2; ++d) {
    const std::int64_t length = call.input.size(static_cast<std::int64_t>(d) + 2);
    if (pool.size[d] < 1 || pool.size[d] > kernels::kNoPlace || pool.stride[d] < 1 ||
        pool.padding[d] < 0 || pool.padding[d] > pool.size[d] / 2 ||
        length + 2 * pool.padding[d] < pool.size[d])
      return false;  // LibTorch's, which says what is wrong
    const bool is_short =
        pool.size[d] <= kernels::kLongestWindow && pool.stride[d] <= kernels::kLongestWindow;
    if (!channels_last && !is_short) return false;
  }
  return pool.size[0] * pool.size[1] <= kernels::kNoPlace;
}

}  // namespace demi::batch_norm

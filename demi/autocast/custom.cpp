#include "demi/autocast/custom.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "demi/autocast/op_table.h"
#include "demi/autocast/thread_tables.h"
#include "demi/core/error.h"

namespace demi {
namespace {

constexpr const char* kDevice = "demi.autocast.device";
constexpr const char* kEnabled = "demi.autocast.enabled";
constexpr const char* kDtype = "demi.autocast.dtype";
constexpr const char* kCache = "demi.autocast.cache_enabled";
constexpr const char* kTable = "demi.autocast.table";  // a pointer: tables are never freed

}  // namespace

CustomForward::CustomForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device,
                             std::optional<c10::ScalarType> cast_inputs)
    : device_(device) {
  const bool enabled = at::autocast::is_autocast_enabled(device);
  ctx->saved_data[kDevice] = static_cast<std::int64_t>(device);
  ctx->saved_data[kEnabled] = enabled && !cast_inputs;
  ctx->saved_data[kDtype] = static_cast<std::int64_t>(at::autocast::get_autocast_dtype(device));
  ctx->saved_data[kCache] = cache_is_enabled();
  ctx->saved_data[kTable] = reinterpret_cast<std::int64_t>(table_now(device));
  if (cast_inputs && enabled) {
    dtype_ = cast_inputs;
    disabled_.emplace(device, AutocastOptions{.enabled = false});
  }
}

at::Tensor CustomForward::cast(const at::Tensor& tensor) const {
  return dtype_ && at::autocast::is_eligible(tensor, device_) ? tensor.to(*dtype_) : tensor;
}

CustomBackward::CustomBackward(torch::autograd::AutogradContext* ctx) {
  const auto& saved = ctx->saved_data;
  const auto device = saved.find(kDevice);
  if (device == saved.end())
    refuse({.where = "autocast.CustomBackward",
            .what = "forward of this function did not begin with a CustomForward"});
  AutocastOptions options{.enabled = saved.at(kEnabled).toBool(),
                          .cache_enabled = saved.at(kCache).toBool()};
  if (options.enabled) options.dtype = static_cast<c10::ScalarType>(saved.at(kDtype).toInt());
  region_ = Autocast(static_cast<c10::DeviceType>(device->second.toInt()), options,
                     reinterpret_cast<const OpTable*>(saved.at(kTable).toInt()));
}

void register_autocast(std::string_view op, OpCategory category, c10::DeviceType device) {
  OpPolicy checked;
  checked.set(op, category, "registered by the user");
  for (const auto& rule : checked.changes()) add_default_rule(device, rule);
}

}  // namespace demi

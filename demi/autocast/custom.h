#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

#include "demi/autocast/autocast.h"
#include "demi/autocast/op_policy.h"
#include "demi/core/export.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace demi {

/// torch.amp.custom_fwd for a torch::autograd::Function: first line of forward.
///
///     static at::Tensor forward(AutogradContext* ctx, at::Tensor x, at::Tensor w) {
///       demi::CustomForward autocast(ctx, torch::kCPU, torch::kFloat);   // cast_inputs; leave out
///       to follow the region x = autocast.cast(x); ...
///
/// Remembers the region's state in ctx for CustomBackward. With `cast_inputs`, inside a region,
/// forward runs with autocast disabled and cast() gives floating point tensors of the device in
/// that dtype; outside a region it changes nothing.
class DEMI_API CustomForward {
 public:
  CustomForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device,
                std::optional<c10::ScalarType> cast_inputs = std::nullopt);

  at::Tensor cast(const at::Tensor& tensor) const;

 private:
  c10::DeviceType device_;
  std::optional<c10::ScalarType> dtype_;
  std::optional<Autocast> disabled_;
};

/// torch.amp.custom_bwd: first line of backward. Until the end of the scope autocast is on or off,
/// in the dtype, under the op policy and with the cache setting, as it was for forward's own ops.
class DEMI_API CustomBackward {
 public:
  explicit CustomBackward(torch::autograd::AutogradContext* ctx);

 private:
  std::optional<Autocast> region_;
};

/// Gives an operator of your own ("myops::scale", registered with TORCH_LIBRARY) an autocast rule
/// on this device, for all policies that do not name it, in regions that are entered from now
/// on. Call it once, before threads run the operator. Throws UsageError for an operator that the
/// dispatcher does not know or that writes to its arguments.
DEMI_API void register_autocast(std::string_view op, OpCategory category, c10::DeviceType device);

}  // namespace demi

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

/// torch.amp.custom_fwd for a torch::autograd::Function: the first line of forward.
///
///     static at::Tensor forward(AutogradContext* ctx, at::Tensor x) {
///       demi::CustomForward autocast(ctx, torch::kCPU, torch::kFloat);
///       x = autocast.cast(x);
///
/// Saves the region's state in ctx for CustomBackward. `cast_inputs` is the third argument; leave
/// it out to follow the region. If it is given, inside a region, forward runs with autocast
/// disabled and cast() returns floating point tensors of the device, but for FP64, in that dtype.
/// Outside a region it has no effect.
class DEMI_API CustomForward {
 public:
  [[nodiscard]] CustomForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device,
                              std::optional<c10::ScalarType> cast_inputs = std::nullopt);

  /// The tensor in the dtype of `cast_inputs`; itself if that was not given, outside a region, and
  /// if it is FP64 or not a floating point tensor of the device.
  at::Tensor cast(const at::Tensor& tensor) const;

 private:
  c10::DeviceType device_;
  std::optional<c10::ScalarType> dtype_;
  std::optional<Autocast> disabled_;
};

/// torch.amp.custom_bwd: the first line of backward. Restores, until the end of the scope, the
/// autocast state of forward's own ops: on or off, dtype, op policy and cache setting. Throws
/// UsageError if forward did not begin with a CustomForward.
class DEMI_API CustomBackward {
 public:
  [[nodiscard]] explicit CustomBackward(torch::autograd::AutogradContext* ctx);

 private:
  std::optional<Autocast> region_;
};

/// Gives an operator of yours ("myops::scale", registered with TORCH_LIBRARY) an autocast rule on
/// this device. It applies to all policies that do not name the operator, in regions that are
/// entered from now on. Call it once, before threads run the operator. Throws UsageError for an
/// operator that the dispatcher does not know or that writes to its arguments.
DEMI_API void register_autocast(std::string_view op, OpCategory category, c10::DeviceType device);

}  // namespace demi

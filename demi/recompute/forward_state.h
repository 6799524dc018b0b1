#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>
#include <vector>

#include "demi/autocast/recorded_region.h"
#include "demi/core/local_pass.h"

namespace demi::recomputation {

/// The states of LibTorch's default generators of the CPU and of some devices.
class RandomState {
 public:
  RandomState() = default;
  /// Copies the present states.
  explicit RandomState(const std::vector<c10::Device>& devices);
  void restore() const;
  std::vector<c10::Device> devices() const;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// The thread's state when a function is first run, beside its inputs.
struct ForwardState {
  RecordedRegion region;
  RandomState random;
  // Backward asks for tensors from within a function's backward, which may exclude keys.
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  bool is_local = is_local_pass();

  /// Brings it back until the end of the scope, with gradients enabled.
  class Guard;
};

class ForwardState::Guard {
 public:
  [[nodiscard]] explicit Guard(const ForwardState& state);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  RecordedRegion::Guard region_;
  c10::impl::ForceDispatchKeyGuard keys_;
  at::AutoGradMode grad_{true};
  bool was_local_;
  RandomState present_;
};

}  // namespace demi::recomputation

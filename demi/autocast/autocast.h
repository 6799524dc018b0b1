#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>

#include "demi/autocast/op_policy.h"
#include "demi/autocast/policy.h"
#include "demi/core/export.h"

namespace demi {

struct OpTable;

struct AutocastOptions {
  std::optional<c10::ScalarType>
      dtype;            // fp16 or bf16; fp16 on CUDA and bf16 on CPU where not given outside either
  bool enabled = true;  // false: an FP32 sub-region inside an enabled one
  std::optional<bool> cache_enabled;  // one cast a weight and region; false casts at every use; the
                                      // outer region's, or true, where not given
  std::optional<OpPolicy>
      policy;  // what each op runs in; the outer region's, or the global one, where not given
};

/// A region of automatic mixed precision on one device type, in this thread, until the end of the
/// scope.
///
///     demi::Autocast region(torch::kCPU, torch::kBFloat16);
///     auto output = model->forward(input);
///
/// Regions nest: the innermost decides, and leaving one (also by an exception) restores what was
/// set outside of it. A disabled region runs ops as given; FP32 ops inside it want FP32 inputs
/// (`x.to(torch::kFloat)`). Outputs of ops keep the dtype that they ran in. Backward belongs
/// outside the region and runs in the dtype of the forward op; called inside, autocast stays on.
/// Moved freely, not copied. Does not synchronise.
///
/// The first enabled region on a device brings demi's kernels onto its autocast key: they serve
/// at::autocast's own setters too. A dtype that the device runs slower than FP32 is warned about
/// once (c10 warning).
///
/// Threads that LibTorch starts for work of this one (autograd's for each device, at::launch) run
/// in the region as well, op policy and kept copies of weights included; your own take a
/// ThreadState.
///
/// Throws UsageError for a device without autocast and for any other dtype, also for one that
/// at::autocast::set_autocast_dtype left behind. A region that is destroyed in another thread or in
/// another order than entered warns, and the state that was set outside comes back as soon as the
/// regions entered after it are left (by their own thread). At the end of its thread every region
/// ends.
class DEMI_API Autocast {
 public:
  explicit Autocast(c10::DeviceType device, AutocastOptions options = {});
  Autocast(c10::DeviceType device, c10::ScalarType dtype);

  /// The region that a Keras policy wants: enabled in its compute dtype with FP32 softmax where
  /// that is a 16-bit one, disabled else. Without arguments: global_policy(), on CUDA where there
  /// is a device, else on CPU.
  Autocast(c10::DeviceType device, const Policy& policy);
  Autocast();

  ~Autocast();
  Autocast(Autocast&&) noexcept;
  Autocast& operator=(Autocast&&) noexcept;

  /// Ends the region before the scope does. Throws UsageError, and leaves everything as it is, in
  /// another thread than the one that entered it, and while a region entered later is still open. A
  /// second call does nothing.
  void leave();

 private:
  friend class CustomBackward;
  struct Frame;
  Autocast(c10::DeviceType device, const AutocastOptions& options, const OpTable* table);
  void close() noexcept;
  std::shared_ptr<Frame> frame_;
};

}  // namespace demi

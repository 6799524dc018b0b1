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

/// Options of a region. Defaults come from the outer region, if there is one.
struct AutocastOptions {
  /// fp16 or bf16. Default: the outer region's, else fp16 on CUDA and bf16 on CPU.
  std::optional<c10::ScalarType> dtype = {};
  /// false: an FP32 sub-region of an enabled region.
  bool enabled = true;
  /// true: one cast for each weight and region. false: one for each use. Default: the outer
  /// region's, else true.
  std::optional<bool> cache_enabled = {};
  /// The dtypes that ops run in. Default: the outer region's policy, else global_op_policy().
  std::optional<OpPolicy> policy = {};
};

/// A region of automatic mixed precision for one device type and this thread, until the end of the
/// scope.
///
///     demi::Autocast region(torch::kCPU, torch::kBFloat16);
///     auto output = model->forward(input);
///
/// Regions nest: the innermost decides, and leaving one (also by an exception) restores the state
/// outside of it. In a disabled region ops run with the dtypes that they are given; cast its inputs
/// yourself (`x.to(torch::kFloat)`). An op's output has the dtype that the op ran in. Backward
/// belongs outside the region and runs in the dtype of the forward op; if it is called inside,
/// autocast stays on. Can be moved, not copied. Does not synchronise.
///
/// The first enabled region on a device registers demi's kernels for its autocast key, which serve
/// at::autocast's own setters, too. If the device runs the dtype slower than FP32, the first region
/// warns once (c10 warning).
///
/// Threads that LibTorch starts for the work of this thread (autograd's for each device,
/// at::launch) run in the region, too, with its op policy and kept copies of weights. Your own
/// threads need a ThreadState.
///
/// Throws UsageError for a device without autocast and for a dtype other than fp16 and bf16, also
/// if at::autocast::set_autocast_dtype has set it. A region that is destroyed in another thread or
/// order than it was entered warns; the state outside is restored when the regions entered after it
/// have been left by their own thread. Every region ends with its thread.
class DEMI_API Autocast {
 public:
  [[nodiscard]] explicit Autocast(c10::DeviceType device, AutocastOptions options = {});
  [[nodiscard]] Autocast(c10::DeviceType device, c10::ScalarType dtype);

  /// The region of a Keras policy. If the policy's compute dtype is a 16-bit one, the region is
  /// enabled in it, with softmax in FP32; otherwise it is disabled. Without arguments:
  /// global_policy(), on CUDA if there is a device, else on the CPU.
  [[nodiscard]] Autocast(c10::DeviceType device, const Policy& policy);
  [[nodiscard]] Autocast();

  ~Autocast();
  Autocast(Autocast&&) noexcept;
  Autocast& operator=(Autocast&&) noexcept;

  /// Ends the region before the scope does. Throws UsageError, and changes nothing, if another
  /// thread entered the region or a region entered later is still open. A second call does nothing.
  void leave();

 private:
  friend class CustomBackward;
  struct Frame;
  Autocast(c10::DeviceType device, const AutocastOptions& options, const OpTable* table);
  void close() noexcept;
  std::shared_ptr<Frame> frame_;
};

}  // namespace demi

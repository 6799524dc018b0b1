#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"
#include "demi/kernels/cuda_kernels.h"
#include "demi/scaler/scale_rule.h"
#include "demi/scaler/skip_watch.h"

namespace demi {

/// The scale and the state of its rule, on the device of the run. On the CPU the rule is next_state
/// itself. On a device the same rule runs there, so that nothing is read back: as one launch where
/// there are demi's kernels, else, and for ScaleMode::kAmax, as 150 tensor operations.
class DEMI_API DeviceScale {
 public:
  bool exists() const { return scale_.defined(); }
  /// `on_device`: the rule runs on the device, also on a CPU; by `kernels`, if they are given.
  void create(c10::Device device, const ScaleState& state, const GradScalerOptions& options,
              bool on_device, const kernels::CudaKernels* kernels = nullptr);

  /// fp32, (). On the CPU a new tensor for each value: a tensor that autograd saved keeps its
  /// value.
  const at::Tensor& tensor() const { return scale_; }
  /// fp32 of 1 / scale, divided in fp64, (): exact for powers of two.
  at::Tensor inverse() const;
  bool is_on_device() const { return on_device_; }
  /// Keeps the memory for ever, for a stream capture: the graph may outlive this.
  void keep_for_graphs() const;

  ScaleState read() const;  // waits for the device
  void write(const ScaleState& state);

  void advance(const ScaleInput& input, const GradScalerOptions& options);
  /// found_inf, amax, held: fp32, (), on the device; amax only for ScaleMode::kAmax. Nothing
  /// changes if `held` is defined and not 0.
  void advance(const at::Tensor& found_inf, const at::Tensor& amax,
               const GradScalerOptions& options, const at::Tensor& held = {});

  /// Whether the rule is one launch, which counts skipped steps, too.
  bool is_one_launch(const GradScalerOptions& options) const;
  /// Launches the rule on the device's current stream. found_inf, above: fp32, (), on the device;
  /// `above`, if defined, is not 0 for a step that was skipped for its norm. Throws DeviceError.
  void advance(const at::Tensor& found_inf, const at::Tensor& above, SkipWatch& watch,
               const GradScalerOptions& options);

  static at::Tensor power_of_two(const at::Tensor& power);  // whole numbers; fp64

 private:
  at::Tensor confined(const at::Tensor& wanted, const GradScalerOptions& options) const;
  void advance_dynamic(const at::Tensor& found, const GradScalerOptions& options);
  void advance_amax(const at::Tensor& found, const at::Tensor& amax,
                    const GradScalerOptions& options);

  bool on_device_ = false;
  const kernels::CudaKernels* kernels_ = nullptr;
  ScaleState host_;                // on the CPU
  at::Tensor scale_;               // fp32, ()
  at::Tensor growth_tracker_;      // int32, (), on a device
  at::Tensor hysteresis_tracker_;  // int32, (), on a device
  /// kAmax on a device: fp32, (amax_window), zeros for steps that have not been yet.
  at::Tensor history_;
};

}  // namespace demi

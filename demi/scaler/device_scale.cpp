#include "demi/scaler/device_scale.h"

#include <c10/core/DeviceGuard.h>
#include <torch/types.h>

#include <limits>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/kernels/inverse_scale.h"
#include "demi/scaler/kernel_rule.h"
#include "demi/step/streams.h"
#include "demi/tensor/inverse_scale.h"
#include "demi/tensor/native_stream.h"

namespace demi {

void DeviceScale::create(c10::Device device, const ScaleState& state,
                         const GradScalerOptions& options, bool on_device,
                         const kernels::CudaKernels* kernels) {
  on_device_ = on_device;
  kernels_ = kernels;
  const at::TensorOptions at_device(device);
  scale_ = at::empty({}, at_device.dtype(at::kFloat));
  growth_tracker_ = at::empty({}, at_device.dtype(at::kInt));
  hysteresis_tracker_ = at::empty({}, at_device.dtype(at::kInt));
  if (options.mode == ScaleMode::kAmax)
    history_ = at::zeros({options.amax_window}, at_device.dtype(at::kFloat));
  write(state);
}

void DeviceScale::keep_for_graphs() const {
  for (const at::Tensor& tensor : {scale_, growth_tracker_, hysteresis_tracker_, history_})
    optim::keep_for_graphs(tensor);
}

at::Tensor DeviceScale::inverse() const {
  if (on_device_) return tensor::inverse_of_scale(scale_);
  return at::scalar_tensor(kernels::inverse_of_scale(host_.scale), at::kFloat);
}

ScaleState DeviceScale::read() const {
  if (!on_device_) return host_;
  ScaleState state{.scale = scale_.item<float>(),
                   .growth_tracker = growth_tracker_.item<int32_t>(),
                   .hysteresis_tracker = hysteresis_tracker_.item<int32_t>(),
                   .amax_history = {}};
  if (!history_.defined()) return state;
  const at::Tensor history = history_.cpu();
  const float* values = history.const_data_ptr<float>();
  state.amax_history.assign(values, values + history.numel());
  return state;
}

void DeviceScale::write(const ScaleState& state) {
  host_ = state;
  if (!on_device_) {
    scale_ = at::scalar_tensor(state.scale, at::kFloat);
    return;
  }
  const at::NoGradGuard no_grad;
  scale_.fill_(state.scale);
  growth_tracker_.fill_(state.growth_tracker);
  hysteresis_tracker_.fill_(state.hysteresis_tracker);
  if (!history_.defined()) return;
  history_.zero_();
  const auto kept = std::min<int64_t>(std::ssize(state.amax_history), history_.numel());
  const std::vector<float> newest(state.amax_history.end() - kept, state.amax_history.end());
  if (kept > 0) history_.narrow(0, history_.numel() - kept, kept).copy_(at::tensor(newest));
}

void DeviceScale::advance(const ScaleInput& input, const GradScalerOptions& options) {
  ScaleState next = next_state(host_, input, options);
  if (next.scale != host_.scale) scale_ = at::scalar_tensor(next.scale, at::kFloat);
  host_ = std::move(next);
}

void DeviceScale::advance(const at::Tensor& found_inf, const at::Tensor& amax,
                          const GradScalerOptions& options, const at::Tensor& held) {
  const at::NoGradGuard no_grad;
  const at::Tensor found = found_inf != 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  if (held.defined())
    for (const at::Tensor& one : {scale_, growth_tracker_, hysteresis_tracker_, history_})
      if (one.defined()) before.emplace_back(one, one.clone());
  if (options.mode == ScaleMode::kDynamic) advance_dynamic(found, options);
  if (options.mode == ScaleMode::kAmax) advance_amax(found, amax, options);
  for (const auto& [now, then] : before) now.copy_(at::where(held != 0, then, now));
}

bool DeviceScale::is_one_launch(const GradScalerOptions& options) const {
  return kernels_ && options.mode != ScaleMode::kAmax;
}

void DeviceScale::advance(const at::Tensor& found_inf, const at::Tensor& above, SkipWatch& watch,
                          const GradScalerOptions& options) {
  const c10::DeviceGuard guard(scale_.device());
  const SkipWatch::OnDevice counts = watch.on_device(scale_);
  const kernels::LossScaleUpdate update{
      .rule = kernel_rule(options),
      .scale = scale_.mutable_data_ptr<float>(),
      .growth_tracker = growth_tracker_.mutable_data_ptr<int32_t>(),
      .hysteresis_tracker = hysteresis_tracker_.mutable_data_ptr<int32_t>(),
      .skips_in_a_row = counts.skips_in_a_row,
      .skips = counts.skips,
      .mirror = counts.mirror,
      .found_inf = found_inf.const_data_ptr<float>(),
      .above_norm = above.defined() ? above.const_data_ptr<float>() : nullptr};
  const char* complaint = kernels_->update_scale(update, tensor::native_stream(scale_.device()));
  if (complaint)
    throw DeviceError({.where = "scaler.update",
                       .what = "the device refused the launch that moves the scale",
                       .seen = complaint});
  watch.note_launch();
  scale_.unsafeGetTensorImpl()->bump_version();  // autograd may have saved it
}

at::Tensor DeviceScale::confined(const at::Tensor& wanted, const GradScalerOptions& options) const {
  const at::Tensor next = wanted.clamp(options.min_scale, options.max_scale).to(at::kFloat);
  const at::Tensor reciprocal = next.to(at::kDouble).reciprocal().to(at::kFloat);
  const at::Tensor usable =
      next.isfinite().logical_and(next > 0).logical_and(reciprocal.isfinite());
  return at::where(usable.logical_and(reciprocal > 0), next, scale_);
}

/// 2^power, fp64, by its exponent bits: exact on every device, where pow need not be.
at::Tensor DeviceScale::power_of_two(const at::Tensor& power) {
  return power.to(at::kLong).clamp(-1022, 1023).add(1023).bitwise_left_shift(52).view(at::kDouble);
}

// next_state, line by line.
void DeviceScale::advance_dynamic(const at::Tensor& found, const GradScalerOptions& options) {
  const at::Tensor clean = found.logical_not();
  at::Tensor hysteresis = hysteresis_tracker_;
  if (options.refill_hysteresis)
    hysteresis = at::where(clean, at::full_like(hysteresis, options.hysteresis), hysteresis);
  hysteresis = at::where(found, hysteresis - 1, hysteresis).clamp_min(0);
  const at::Tensor backs_off = found.logical_and(hysteresis == 0);

  const at::Tensor tracker = at::where(found, at::zeros_like(growth_tracker_), growth_tracker_ + 1);
  const at::Tensor grows = clean.logical_and(tracker >= options.growth_interval);

  const at::Tensor exact = scale_.to(at::kDouble);
  const at::Tensor moved =
      at::where(grows, exact * options.growth_factor, exact * options.backoff_factor);
  scale_.copy_(at::where(grows.logical_or(backs_off), confined(moved, options), scale_));
  growth_tracker_.copy_(at::where(grows, at::zeros_like(tracker), tracker));
  hysteresis_tracker_.copy_(
      at::where(grows, at::full_like(hysteresis, options.hysteresis), hysteresis));
}

void DeviceScale::advance_amax(const at::Tensor& found, const at::Tensor& amax,
                               const GradScalerOptions& options) {
  constexpr double kGreatest = std::numeric_limits<float>::max();
  const at::Tensor overflowed =
      (scale_.to(at::kDouble).reciprocal() * 65504.0).clamp_max(kGreatest).to(at::kFloat);
  const at::Tensor entry = at::where(found, overflowed, amax).reshape({1});
  history_.copy_(at::cat({history_.narrow(0, 1, history_.numel() - 1), entry}));
  const at::Tensor greatest = history_.amax().to(at::kDouble);
  const auto [fraction, exponent] = at::frexp(greatest.reciprocal() * options.amax_limit);
  const at::Tensor power = at::where(fraction == 0.5, exponent - 2, exponent - 1);
  const at::Tensor wanted = power_of_two(power);
  scale_.copy_(at::where(greatest == 0, scale_, confined(wanted, options)));
}

}  // namespace demi

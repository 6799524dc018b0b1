#include "demi/scaler/skip_watch.h"

#include <ATen/core/CachingHostAllocator.h>
#include <torch/types.h>

#include "demi/step/streams.h"

namespace demi {

void SkipWatch::count(bool skipped, float scale) {
  host_ = {.skips_in_a_row = skipped ? host_.skips_in_a_row + 1 : 0,
           .scale = scale,
           .skips = host_.skips + (skipped ? 1 : 0)};
}

void SkipWatch::create(const at::Tensor& like) {
  if (skips_in_a_row_.defined()) return;
  const at::NoGradGuard no_grad;
  skips_in_a_row_ = at::zeros_like(like);
  skips_ = at::zeros_like(like);
  mirror_ = at::zeros({3}, at::TensorOptions(at::kFloat).pinned_memory(like.is_cuda()));
}

SkipWatch::OnDevice SkipWatch::on_device(const at::Tensor& like) {
  create(like);
  return {skips_in_a_row_.mutable_data_ptr<float>(), skips_.mutable_data_ptr<float>(),
          mirror_.mutable_data_ptr<float>()};
}

void SkipWatch::note_launch() const {
  if (!skips_.is_cuda()) return;  // the mirror is not pinned
  at::getHostAllocator(at::kCUDA)->record_event(mirror_.mutable_data_ptr(),
                                                mirror_.storage().data_ptr().get_context(),
                                                *optim::current_stream(skips_.device()));
}

void SkipWatch::count(const at::Tensor& found_inf, const at::Tensor& scale,
                      const at::Tensor& held) {
  create(scale);
  const at::NoGradGuard no_grad;
  const at::Tensor next = (skips_in_a_row_ + 1) * found_inf;
  skips_in_a_row_.copy_(held.defined() ? at::where(held != 0, skips_in_a_row_, next) : next);
  skips_.add_(found_inf);
  mirror_.copy_(at::stack({skips_in_a_row_, scale, skips_}), /*non_blocking=*/true);
}

void SkipWatch::keep_for_graphs() const {
  optim::keep_for_graphs(skips_in_a_row_);
  optim::keep_for_graphs(skips_);
  optim::keep_for_graphs(mirror_);
}

SkipWatch::Count SkipWatch::latest() const {
  if (!mirror_.defined()) return host_;
  // The device may write at any time: each number is an old or a new one, never half of both.
  const volatile float* numbers = mirror_.const_data_ptr<float>();
  return {.skips_in_a_row = static_cast<int64_t>(numbers[0]),
          .scale = numbers[1],
          .skips = static_cast<int64_t>(numbers[2])};
}

void SkipWatch::warn(int64_t after) {
  const Count seen = latest();
  const bool many = after > 0 && seen.skips_in_a_row >= after;
  if (many && !warned_) {
    TORCH_WARN("[scaler.GradScaler] ", seen.skips_in_a_row,
               " steps in a row were skipped, because their gradients held Inf or NaN;",
               " the scale is now ", seen.scale,
               ". With a scale that small the cause is hardly the scale: look for a loss that is "
               "NaN or Inf without scaling, a",
               " division or log of 0, a learning rate that is too high, or inputs that are not "
               "finite.");
  }
  warned_ = many;
}

}  // namespace demi

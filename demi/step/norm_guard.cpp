#include "demi/step/norm_guard.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <limits>

#include "demi/core/error.h"
#include "demi/kernels/step_table.h"

namespace demi::optim {
namespace {

constexpr double kNoDeviations = std::numeric_limits<double>::infinity();

void require_above_0(const char* name, double value) {
  if (value > 0) return;
  refuse({.where = "optim.StepOptions",
          .what = std::string("skip_norm_above: ") + name + " is out of range",
          .seen = fmt::format("{}", value),
          .accepted = "above 0"});
}

}  // namespace

JointNorm joint_norm(const std::vector<NormPart>& parts) {
  const c10::Device device = parts.front().norm.device();
  at::Tensor squares = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  at::Tensor found = at::zeros({}, at::TensorOptions(device).dtype(at::kBool));
  for (const NormPart& part : parts) {
    const at::Tensor norm = part.norm.to(device, at::kDouble);
    const at::Tensor bad = part.found_inf.to(device) != 0;
    squares = squares + at::where(bad, at::zeros_like(norm), norm * norm);
    found = found.logical_or(bad);
  }
  return {squares.sqrt().to(at::kFloat), found.logical_not().to(at::kFloat)};
}

NormGuard::NormGuard(const NormLimit& limit) : limit_(limit) {
  require_above_0("bound", limit.bound);
  require_above_0("deviations", limit.deviations);
  if (limit.bound == kernels::kNoLimit && limit.deviations == kNoDeviations)
    refuse({.where = "optim.StepOptions",
            .what = "skip_norm_above has no limit",
            .seen = "bound and deviations of infinity",
            .accepted = "one finite number or both",
            .advice = "leave skip_norm_above out to skip nothing"});
}

bool NormGuard::uses_window() const { return limit_.deviations != kNoDeviations; }

void NormGuard::come_to(c10::Device device) {
  const at::TensorOptions there = at::TensorOptions(device).dtype(at::kFloat);
  if (uses_window()) norms_ = norms_.defined() ? norms_.to(device) : at::full({kWindow}, -1, there);
  in_a_row_ = in_a_row_.defined() ? in_a_row_.to(device) : at::zeros({}, there);
  if (!mirror_.defined())
    mirror_ = at::zeros({}, at::TensorOptions(at::kFloat).pinned_memory(device.is_cuda()));
  if (!device.is_cuda() || !streams_.is_new(*current_stream(device))) return;
  for (const at::Tensor& one : {norms_, in_a_row_})
    if (one.defined()) one.record_stream(*current_stream(device));
}

at::Tensor NormGuard::is_above(const at::Tensor& norm) {
  const at::NoGradGuard no_grad;
  come_to(norm.device());
  const at::Tensor exact = norm.to(at::kDouble);
  at::Tensor above = exact > limit_.bound;
  if (uses_window()) {
    const at::Tensor seen = norms_.to(at::kDouble), mean = seen.mean();
    const at::Tensor deviation = (seen - mean).square().mean().sqrt();
    const at::Tensor tells = (norms_.select(0, 0) >= 0).logical_and(deviation > 0);
    above = above.logical_or(tells.logical_and(exact - mean > deviation * limit_.deviations));
  }
  return above.to(at::kFloat);
}

void NormGuard::note(const NormDecision& decision, const at::Tensor& skipped) {
  const at::NoGradGuard no_grad;
  const at::Tensor norm = decision.joint.norm;
  come_to(norm.device());
  const at::Tensor above = decision.above.to(norm.device()) != 0;
  const at::Tensor taken = skipped.to(norm.device()) == 0;
  in_a_row_.copy_(at::where(above, in_a_row_ + 1, in_a_row_ * taken.logical_not()));
  mirror_.copy_(in_a_row_, /*non_blocking=*/true);
  if (uses_window()) {
    const at::Tensor counts =
        taken.logical_and(decision.joint.finite != 0).logical_and(norm.isfinite());
    const at::Tensor next = at::cat({norms_.narrow(0, 1, kWindow - 1), norm.reshape({1})});
    norms_.copy_(at::where(counts, next, norms_));
  }
  warn();
}

// Once for each run of skipped steps; where a device decides, some steps late.
void NormGuard::warn() {
  // The device may write at any time: the number is an old or a new one.
  const float seen = *static_cast<const volatile float*>(mirror_.const_data_ptr<float>());
  const bool many = seen >= static_cast<float>(kWarnAfter);
  if (many && !warned_) {
    TORCH_WARN(
        "[optim.step] ", seen,
        " steps in a row were skipped, because the norm of their gradients was above "
        "StepOptions::skip_norm_above. The norms of skipped steps do not count for the mean, "
        "so if gradients have grown for good, all further steps are skipped too: raise the "
        "limit, or lower the learning rate.");
  }
  warned_ = many;
}

void check_window(const at::Tensor& norms) {
  const bool fits =
      norms.dim() == 1 && norms.numel() == NormGuard::kWindow && norms.scalar_type() == at::kFloat;
  if (fits && (norms.isfinite() & (norms >= -1)).all().item<bool>()) return;
  refuse({.where = "optim.Optimizer",
          .what = "the norms of the last steps in the state are out of range",
          .seen = c10::str(norms.toString(), " ", norms.sizes()),
          .accepted = c10::str("fp32, (", NormGuard::kWindow, "), finite, 0 or more; -1: none yet"),
          .advice = "load what was saved from the same model and optimizer"});
}

void NormGuard::set_window(const at::Tensor& norms) {
  const at::NoGradGuard no_grad;
  if (norms.defined()) check_window(norms);
  in_a_row_.reset();
  streams_ = {};
  warned_ = false;
  norms_ = norms.defined() && uses_window() ? norms.detach().clone() : at::Tensor();
}

}  // namespace demi::optim

#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "demi/kernels/path.h"

namespace demi::optim {

/// The L2 norm of the unscaled gradients, before clipping, above which a step is skipped. Of two
/// limits each holds.
struct NormLimit {
  /// The norm itself. Above 0.
  double bound = std::numeric_limits<double>::infinity();
  /// So many standard deviations above the mean norm of the last 128 steps that were taken; nothing
  /// is skipped before there are 128, and while they are all equal. Above 0. The rule of llm.c, but
  /// for the norms of skipped steps, which do not count here.
  double deviations = std::numeric_limits<double>::infinity();
};

/// How an optimizer keeps the states of its rule, such as Adam's moments.
enum class Moments : std::uint8_t {
  /// FP32: 4 bytes a state and parameter.
  fp32,
  /// bf16, rounded up or down by chance in each step, so that small changes count in the mean: 4
  /// bytes a parameter less of Adam. Tensors under kLeastCoded elements and FP64 parameters keep
  /// their dtype, as do amsgrad's maximum, RMSprop's averages where it is centered, and groups
  /// whose options have fp32_states(true).
  bf16,
  /// 8 bits in groups of 32 neighbours with a scale each, rounded by chance: 5.9 bytes a parameter
  /// less of Adam. Of those in contiguous memory; the others that bf16 takes are bf16.
  int8,
};

/// The least number of elements of a tensor whose states may lie in fewer bits.
inline constexpr std::int64_t kLeastCoded = 4096;

/// How an optimizer keeps a 16-bit parameter, which is trained as FP32. Those other than master are
/// of bf16 parameters (split: of fp16 ones, too) without gaps in their memory, others are refused;
/// FP32 and FP64 parameters keep their dtype.
enum class WeightMode : std::uint8_t {
  /// An FP32 master beside the parameter, which is its copy, rounded ties to even: 4 bytes a
  /// parameter.
  master,
  /// The parameter is the upper half of the FP32 number, rounded ties away from zero, and the lower
  /// half lies in the optimizer: 2 bytes a parameter, and no bit is lost. Of an fp16 parameter:
  /// none of numbers from 2^-16 to 65,504; smaller ones are rounded to a multiple of 2^-39.
  split,
  /// As split, with 8 bits of the lower half, to which each step rounds: 1 byte a parameter.
  split24,
  /// The parameter alone, rounded up or down by chance in each step, so that small changes count in
  /// the mean: 0 bytes.
  stochastic,
};

/// How a demi optimizer steps, whatever its rule.
struct StepOptions {
  /// true: a gradient with Inf or NaN changes nothing (this costs one read of the gradients).
  /// false: such gradients are applied, as in torch::optim, unless a GradScaler is in use.
  bool skip_nonfinite = true;
  /// false: .grad of an fp32 parameter is fp32 and unscale_() divides it, as with torch::optim.
  /// true: it keeps the 16 bits that backward made, and its loss scale until the step: 2 bytes a
  /// parameter less to hold, 12 less to move. For loops that leave .grad alone between backward and
  /// step, or read it through Optimizer::unscaled_grad().
  bool low_precision_grads = false;
  /// The kernels to use. Not given: those that DEMI_KERNELS names, else the best for this machine.
  std::optional<kernels::Path> path = std::nullopt;
  /// A step whose norm is above it changes nothing. The norm is that of all optimizers that one
  /// call of GradScaler::step, or of loop::Step::finish, takes: they are skipped together. The loss
  /// scale and its growth do not hear of such a step. Not given: no limit.
  std::optional<NormLimit> skip_norm_above = std::nullopt;
  /// How the states of the rule are kept.
  Moments moments = Moments::fp32;
  /// How 16-bit weights are trained.
  WeightMode weight_mode = WeightMode::master;
  /// What is loaded from a state that was saved with other `moments` or another `weight_mode`.
  /// false: it is decoded and kept in the optimizer's own form, and a warning says what that has
  /// lost. true: it is refused, and nothing is changed.
  bool strict_state = false;
  /// Seed of the random bits by which states are rounded. The bits depend besides on the
  /// parameter's number through all groups, the updates that it has taken, and the element's place
  /// in memory, but not on threads, path or ranks.
  std::uint64_t rounding_seed = 0;
};

}  // namespace demi::optim

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
  /// Standard deviations above the mean norm of the last 128 steps that were taken; > 0. Nothing is
  /// skipped before there are 128, and while they are all equal. The rule of llm.c, except that
  /// norms of skipped steps do not count.
  double deviations = std::numeric_limits<double>::infinity();
};

/// The form in which an optimizer keeps the states of its rule, such as Adam's moments.
enum class Moments : std::uint8_t {
  /// FP32: 4 bytes a state and parameter.
  fp32,
  /// bf16, rounded up or down by chance in each step, so that small changes count in the mean: 4
  /// bytes a parameter less for Adam. Tensors under kLeastCoded elements and FP64 parameters keep
  /// their dtype, as do amsgrad's maximum, RMSprop's averages where it is centered, Adagrad's sum,
  /// and groups whose options have fp32_states(true).
  bf16,
  /// 8 bits in groups of 32 neighbours with a scale each, rounded by chance: 5.9 bytes a parameter
  /// less of Adam. For tensors in contiguous memory; others that `bf16` would convert are bf16.
  int8,
};

/// The least number of elements of a tensor whose states may lie in fewer bits.
inline constexpr std::int64_t kLeastCoded = 4096;

/// The form in which an optimizer keeps a 16-bit parameter, which is trained as FP32. All modes but
/// master are for bf16 parameters (split: for fp16 ones, too) without gaps in their memory; others
/// are refused. FP32 and FP64 parameters keep their dtype.
enum class WeightMode : std::uint8_t {
  /// An FP32 master beside the parameter, which is its copy, rounded ties to even: 4 bytes a
  /// parameter.
  master,
  /// The parameter is the upper half of the FP32 number, rounded ties away from zero, and the lower
  /// half lies in the optimizer: 2 bytes a parameter, and no bit is lost. For fp16 parameters this
  /// holds from 2^-16 to 65,504; smaller numbers are rounded to a multiple of 2^-39.
  split,
  /// The split form with 8 bits of the lower half, to which each step rounds: 1 byte a parameter.
  split24,
  /// The parameter alone, rounded up or down by chance in each step, so that small changes count in
  /// the mean: 0 bytes.
  stochastic,
};

/// The options of an optimizer of demi's that are not its rule's.
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
  /// A step whose norm is above it changes nothing. The norm is that of all optimizers in one call
  /// of GradScaler::step, or of loop::Step::finish: they are skipped together. Such a step does not
  /// change the loss scale or its growth. Not given: no limit.
  std::optional<NormLimit> skip_norm_above = std::nullopt;
  /// The form of the rule's states.
  Moments moments = Moments::fp32;
  /// The form of 16-bit weights.
  WeightMode weight_mode = WeightMode::master;
  /// Whether to refuse a state that was saved with other `moments` or another `weight_mode`. false:
  /// it is decoded and kept in the optimizer's own form, and a warning says what that has lost.
  /// true: it is refused, and nothing is changed.
  bool strict_state = false;
  /// Seed of the random bits by which states are rounded. The bits depend besides on the
  /// parameter's number through all groups, the updates that it has taken, and the element's place
  /// in memory, but not on threads, path or ranks.
  std::uint64_t rounding_seed = 0;
};

}  // namespace demi::optim

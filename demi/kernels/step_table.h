#pragma once

#include <cstdint>
#include <limits>

#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/storage.h"

// What one optimizer step works on, as plain structs: the same bytes are read by every CPU path
// and, copied into device memory, by the CUDA kernels. Nothing here owns memory; step_plan.h builds
// and holds it on the host.
//
//   measure  (pass 1, read)        gradients -> partials[block]: sum of squares, greatest magnitude
//   reduce   (small)               partials -> StepState: norm, found_inf
//   decide   (small)               skip? clip factor; step counts; Coefficients of each tensor
//   update   (pass 2, read-write)  unscale × clip × rule -> parameter, moments, copies
//   apply_trust (pass 3; rules with a trust ratio, as LAMB)  parameter, copies, with the trust
//   ratio of each tensor
// A rule of matrices (muon) has update twice: it writes the moment and the direction of the step;
// products make that orthogonal; then update by the rule's pass 3 (muon_apply) moves the parameter.
namespace demi::kernels {

/// One block of work: elements [index × kBlock, (index + 1) × kBlock) of one tensor.
inline constexpr std::int64_t kBlock = 16384;

/// Numbers of a group, and of its coefficients, that only one rule has.
inline constexpr int kOwnNumbers = 4;

inline constexpr float kNoLimit = std::numeric_limits<float>::infinity();

/// The update formula of a group: those of rules/list.h, in its order. ema moves `parameter`
/// towards `gradient` by the learning rate; muon_apply is pass 3 of muon. No group has these two.
enum class UpdateRule : std::uint8_t {
#define DEMI_RULE_ENTRY(name, Name) name,
#include "demi/kernels/rules/entries.h"
  muon_apply,
  ema
};

/// One dense parameter. Arrays of one tensor have `length` elements and do not overlap each other.
/// Any alignment that the element type allows is accepted.
struct TensorEntry {
  /// The FP32 parameter or its master weights; read and written.
  float* parameter = nullptr;
  /// Used in place of `parameter`, where its own parameter is not null.
  CodedWeight coded_parameter = {};
  /// The gradient, in gradient_storage. Null: no gradient in this step, the tensor is left alone.
  const void* gradient = nullptr;
  /// Copies in copy_storage, which are written with the rounded new parameter, or null.
  void* copy[2] = {};
  /// The rule's states of StateForm::array, in its order; null where one is not kept.
  float* moment[3] = {};
  /// Used in place of moment[m], where its values are not null.
  Coded coded_moment[3] = {};
  /// The rule's state of StateForm::scalar, or null. A skipped step does not change it.
  float* scalar = nullptr;
  /// Updates taken so far. Never null. A skipped step does not count.
  std::int64_t* step = nullptr;
  /// One more factor on the unscaled gradient (of a clip over other tensors), or null.
  const float* factor = nullptr;
  std::int64_t length = 0;
  /// muon: the tensor's learning rate as a multiple of its group's.
  double rate_factor = 1;
  /// clip_grad_value_: gradients are clamped to [-limit, limit], after all factors.
  float limit = kNoLimit;
  std::int32_t group = 0;
  /// The parameter's number through all groups of the optimizer: chooses the random bits of
  /// roundings.
  std::int32_t number = 0;
  Storage gradient_storage = Storage::fp32;
  Storage copy_storage[2] = {Storage::none, Storage::none};
  /// The gradient carries no scale any more (GradScaler.unscale_ has divided it).
  bool unscaled = false;
  /// For pass 1 alone: the caller takes the gradient away before decide. Parameter, moments and
  /// step may be null.
  bool measured_only = false;
};

struct Block {
  std::int32_t tensor;
  std::int32_t index;
};

/// Hyper-parameters of one parameter group, as given by the user (doubles, so that FP32 rounding
/// happens where PyTorch's does). A rule ignores the fields that it does not know.
struct Group {
  double learning_rate = 1e-3;
  /// Learning rates by the count of steps taken (StepState::taken), or null.
  const double* scheduled_rates = nullptr;
  /// Length of scheduled_rates. Later steps use the last rate.
  std::int64_t scheduled_count = 0;
  double momentum = 0;    // sgd
  double dampening = 0;   // sgd
  double beta1 = 0.9;     // adam, adamw, lamb, lion
  double beta2 = 0.999;   // adam, adamw, lamb, lion
  double epsilon = 1e-8;  // adam, adamw, lamb
  /// sgd, adam: added to the gradient; adamw, lion: decoupled; lamb: part of the update.
  double weight_decay = 0;
  /// lamb: greatest trust ratio.
  double trust_limit = std::numeric_limits<double>::infinity();
  bool nesterov = false;     // sgd
  bool amsgrad = false;      // adam, adamw
  bool maximize = false;     // all but ema
  bool adapt = true;         // lamb: false sets the trust ratio to 1
  bool fp32_states = false;  // no array of the group is coded
  UpdateRule rule = UpdateRule::sgd;
  double own[kOwnNumbers] = {};  // what only one rule has; its file names them
};

/// The result of a step, one for each step, on the table's device.
struct StepRecord {
  float skipped;        // 0 or 1
  float gradient_norm;  // NaN: not measured
  float scale;          // the loss scale of the gradients
  float above_norm;     // 0 or 1: skipped for StepInputs::above_norm alone
  float found_inf;      // 0 or 1, in the table's own gradients
  float greatest;       // magnitude among the unscaled gradients
};

/// Inputs of a whole step. Pointers are of the table's device; they are read when the step decides,
/// not before.
struct StepInputs {
  /// The loss scale: gradients are scale × the true ones. Null: 1.
  const float* scale = nullptr;
  /// Decides (0 or not) instead of the table's own gradients. Null: those decide.
  const float* found_inf = nullptr;
  /// Not 0: the step is skipped, whatever skip_nonfinite says. Null: no norm is too large.
  const float* above_norm = nullptr;
  /// clip_grad_norm_ over all gradients of the table.
  float max_norm = kNoLimit;
  /// Seed of the random bits by which coded arrays are rounded.
  std::uint64_t rounding_seed = 0;
  /// Written by reduce (norm, found_inf, greatest), then by decide.
  StepRecord* record = nullptr;
  /// true: an Inf or NaN makes the step change nothing. false: it is applied, as in PyTorch without
  /// a scaler.
  bool skip_nonfinite = true;
  /// Whether pass 1 has run for these gradients.
  bool measured = true;
};

/// What a step found and decided. Stays on the table's device from step to step; the host need not
/// read it.
struct StepState {
  float found_inf = 0;        // 0 or 1: an Inf or NaN in the table's own gradients
  float skipped = 0;          // 0 or 1
  float gradient_norm = 0;    // L2, of the unscaled gradients before clipping
  float clip_factor = 1;      // min(1, max_norm / (gradient_norm + 1e-6)), as clip_grad_norm_
  float inverse_scale = 1;    // FP32 of 1 / scale, divided in FP64, as GradScaler
  float greatest = 0;         // magnitude among the scaled gradients
  double sum_of_squares = 0;  // of the scaled gradients
  std::int64_t taken = 0;     // steps that were not skipped
  std::int64_t skips = 0;     // steps that were skipped
  std::uint32_t arrived = 0;  // CUDA, within a launch of pass 1: thread blocks that are done
  std::uint32_t unused = 0;
};

/// The sums of one block from pass 1.
struct Partial {
  double sum_of_squares;
  /// FP32 bits of the greatest magnitude; 0x7F800000 and more: an Inf or NaN.
  std::uint32_t greatest_bits;
  std::uint32_t unused;
};

/// The sums of one block for its tensor's trust ratio.
struct TrustPartial {
  double parameter_squares;
  double update_squares;
};

/// A group's numbers for one tensor and step, rounded to FP32 where PyTorch rounds; written by
/// decide.
struct Coefficients {
  /// -lr; adam, adamw: -lr / (1 - beta1^t); lamb: -lr × trust ratio; ema: lr.
  float negative_rate;
  float decay;  // weight decay; adamw, lion: 1 - lr × weight_decay
  float momentum;
  float one_minus_dampening;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float inverse_correction1;    // lamb: 1 / (1 - beta1^t)
  float inverse_correction2;    // lamb: 1 / (1 - beta2^t)
  float root_bias_correction2;  // adam, adamw: sqrt(1 - beta2^t)
  float epsilon;
  float limit;             // TensorEntry::limit
  float factor;            // *TensorEntry::factor
  float own[kOwnNumbers];  // of the rule alone
  std::uint32_t flags;     // kFirst ... kLimited, kOwn ...
  std::uint32_t arrays;    // bit m: moment[m] is kept
  /// CUDA, a trust ratio, within a launch of pass 2: thread blocks that are done; 0 before and
  /// after.
  std::uint32_t arrived;
};

enum CoefficientFlags : std::uint32_t {
  kFirst = 1,     // no step has been taken for this tensor
  kMomentum = 2,  // sgd keeps a momentum buffer
  kNesterov = 4,
  kAmsgrad = 8,
  kMaximize = 16,
  kDecay = 32,      // weight_decay is not 0
  kLimited = 64,    // limit is finite
  kOwn = 1u << 16,  // this and the bits above it mean what the rule's file says
};

/// Tensors in a row whose groups have one rule, and their blocks: what one launch of passes 2 and 3
/// works on.
struct RuleRange {
  std::int64_t first_block = 0, end_block = 0;
  std::int32_t first_tensor = 0, end_tensor = 0;
  UpdateRule rule = UpdateRule::sgd;
  bool coded = false;    // some tensor has a coded array
  bool grouped = false;  // one with scales
};

struct StepTable {
  const TensorEntry* tensors = nullptr;  // [tensor_count]
  const Block* blocks = nullptr;         // [block_count]
  /// [tensor_count + 1]: tensor t has blocks first_block[t] .. first_block[t + 1].
  const std::int64_t* first_block = nullptr;
  const Group* groups = nullptr;         // [group_count]
  Coefficients* coefficients = nullptr;  // [tensor_count]
  Partial* partials = nullptr;           // [block_count]
  TrustPartial* trust = nullptr;         // [block_count] if a rule has a trust ratio, else null
  StepState* state = nullptr;            // [1]
  StepInputs inputs;
  std::int64_t block_count = 0;
  std::int32_t tensor_count = 0;
  std::int32_t group_count = 0;
  /// Passes 2 and 3 of a launch work on these tensors, by this rule. Pass 1 reads all blocks, and
  /// decide() sets the coefficients of all tensors, each by its group's rule.
  RuleRange range;
  /// muon: element i of the direction of the range's block b is element
  /// (b - range.first_block) * kBlock + i here, so that a tensor's lie in a row and are aligned as
  /// the array is. FP32, fp16 or bf16.
  void* direction = nullptr;
  Storage direction_storage = Storage::none;
};

}  // namespace demi::kernels

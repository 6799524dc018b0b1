#pragma once

#include <cstdint>
#include <limits>

#include "demi/kernels/storage.h"

// What one optimizer step works on, as plain structs: the same bytes are read by every CPU path
// and, copied into device memory, by the CUDA kernels. Nothing here owns memory; step_plan.h builds
// and holds it on the host.
//
//   measure  (pass 1, read)        gradients -> partials[block]: sum of squares, greatest magnitude
//   reduce   (small)               partials -> StepState: norm, found_inf
//   decide   (small)               skip? clip factor; step counts; Coefficients of each tensor
//   update   (pass 2, read-write)  unscale × clip × rule -> parameter, moments, copies
//   apply_trust (pass 3, LAMB)     parameter, copies, with the trust ratio of each tensor
namespace demi::kernels {

/// One block of work: elements [index × kBlock, (index + 1) × kBlock) of one tensor.
inline constexpr std::int64_t kBlock = 16384;

inline constexpr float kNoLimit = std::numeric_limits<float>::infinity();

/// The update formula of a table (formulas.h). ema moves `parameter` towards `gradient` by the
/// learning rate.
enum class Rule : std::uint8_t { sgd, adam, adamw, lamb, lion, ema };

/// One dense parameter. Arrays of one tensor have `length` elements and do not overlap each other;
/// any alignment that its element type allows is accepted.
struct TensorEntry {
  float* parameter = nullptr;  // FP32 parameter or master weights; read and written
  const void* gradient =
      nullptr;         // gradient_storage; null: no gradient this step, the tensor is left alone
  void* copy[2] = {};  // copy_storage; written with the rounded new parameter, or null
  float* moment[3] =
      {};  // sgd: momentum; lion: exp_avg; adam, lamb: exp_avg, exp_avg_sq, [max_exp_avg_sq]
  std::int64_t* step =
      nullptr;  // count of updates taken; never null (a skipped step leaves it alone)
  const float* factor =
      nullptr;  // one more factor on the unscaled gradient (a clip over other tensors), or null
  std::int64_t length = 0;
  float limit =
      kNoLimit;  // clip_grad_value_: gradients are clamped to [-limit, limit], after all factors
  std::int32_t group = 0;
  Storage gradient_storage = Storage::fp32;
  Storage copy_storage[2] = {Storage::none, Storage::none};
  bool unscaled = false;  // the gradient carries no scale any more (GradScaler.unscale_ did it)
};

struct Block {
  std::int32_t tensor;
  std::int32_t index;
};

/// Hyper-parameters of one parameter group, as given by the user (doubles, so that FP32 rounding
/// happens where PyTorch's does). Fields that a rule does not know are ignored.
struct Group {
  double learning_rate = 1e-3;
  const double* scheduled_rates =
      nullptr;  // learning rate by count of steps taken (StepState::taken), or null
  std::int64_t scheduled_count = 0;  // entries there; counts beyond read the last
  double momentum = 0;               // sgd
  double dampening = 0;              // sgd
  double beta1 = 0.9;                // adam, adamw, lamb, lion
  double beta2 = 0.999;              //
  double epsilon = 1e-8;             // adam, adamw, lamb
  double weight_decay =
      0;  // sgd, adam: added to the gradient; adamw, lion: decoupled; lamb: in the update
  double trust_limit = std::numeric_limits<double>::infinity();  // lamb: greatest trust ratio
  bool nesterov = false;                                         // sgd
  bool amsgrad = false;                                          // adam, adamw
  bool maximize = false;                                         // all but ema
  bool adapt = true;  // lamb: false sets the trust ratio to 1
};

/// What a step tells whoever asks later: one of these a step, on the table's device.
struct StepRecord {
  float skipped;        // 0 or 1
  float gradient_norm;  // NaN: not measured
  float scale;          // that the gradients carried
  float found_inf;      // 0 or 1, in the table's own gradients
  float greatest;       // magnitude among the unscaled gradients
};

/// What a whole step is told. Pointers are of the table's device; they are read when the step
/// decides, not before.
struct StepInputs {
  const float* scale = nullptr;  // loss scale: gradients are scale × the true ones; null: 1
  const float* found_inf =
      nullptr;  // decide by this (0 or not) instead of the table's own gradients; null: own
  float max_norm = kNoLimit;     // clip_grad_norm_ over all gradients of the table
  StepRecord* record = nullptr;  // written by reduce (norm, found_inf, greatest), then by decide
  bool skip_nonfinite = true;    // an Inf or NaN makes the step change nothing; false: it goes
                                 // through, as in PyTorch without a scaler
  bool measured = true;          // false: no pass 1 went before
};

/// What a step found and decided. Lives on the table's device from step to step; the host need
/// never read it.
struct StepState {
  float found_inf = 0;        // 0 or 1: an Inf or NaN in the table's own gradients
  float skipped = 0;          // 0 or 1
  float gradient_norm = 0;    // L2, of the unscaled gradients before clipping
  float clip_factor = 1;      // min(1, max_norm / (gradient_norm + 1e-6)), as clip_grad_norm_
  float inverse_scale = 1;    // FP32 of 1 / scale, divided in FP64, as GradScaler
  float greatest = 0;         // magnitude among the scaled gradients
  double sum_of_squares = 0;  // of the scaled gradients
  std::int64_t taken = 0;     // steps that were not skipped
  std::int64_t skips = 0;     // steps that were
  std::uint32_t arrived = 0;  // CUDA, within a launch of pass 1: thread blocks that are done
  std::uint32_t unused = 0;
};

/// What one block's read pass leaves.
struct Partial {
  double sum_of_squares;
  std::uint32_t
      greatest_bits;  // FP32 bits of the greatest magnitude; 0x7F800000 and more: an Inf or NaN
  std::uint32_t unused;
};

/// LAMB: what one block leaves for its tensor's trust ratio.
struct TrustPartial {
  double parameter_squares;
  double update_squares;
};

/// A group's numbers for one tensor and step, rounded to FP32 where PyTorch rounds; written by
/// decide.
struct Coefficients {
  float negative_rate;  // -lr; adam, adamw: -lr / (1 - beta1^t); lamb: -lr × trust ratio; ema: lr
  float decay;          // weight decay; adamw, lion: 1 - lr × weight_decay
  float momentum;       //
  float one_minus_dampening;  //
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float inverse_correction1;    // lamb: 1 / (1 - beta1^t)
  float inverse_correction2;    // lamb: 1 / (1 - beta2^t)
  float root_bias_correction2;  // adam, adamw: sqrt(1 - beta2^t)
  float epsilon;
  float limit;            // of the tensor
  float factor;           // of the tensor
  std::uint32_t flags;    // kFirst ... kMaximize
  std::uint32_t arrived;  // CUDA, lamb, within a launch of pass 2: thread blocks that are done; 0
                          // before and after
};

enum CoefficientFlags : std::uint32_t {
  kFirst = 1,      // no step has been taken for this tensor
  kMomentum = 2,   // sgd keeps a momentum buffer
  kNesterov = 4,   //
  kAmsgrad = 8,    //
  kMaximize = 16,  //
  kDecay = 32,     // weight_decay is not 0
  kLimited = 64,   // limit is finite
};

struct StepTable {
  const TensorEntry* tensors = nullptr;  // [tensor_count]
  const Block* blocks = nullptr;         // [block_count]
  const std::int64_t* first_block =
      nullptr;  // [tensor_count + 1]: tensor t has blocks first_block[t] .. first_block[t + 1]
  const Group* groups = nullptr;         // [group_count]
  Coefficients* coefficients = nullptr;  // [tensor_count]
  Partial* partials = nullptr;           // [block_count]
  TrustPartial* trust = nullptr;         // [block_count] for lamb, else null
  StepState* state = nullptr;            // [1]
  StepInputs inputs;
  std::int64_t block_count = 0;
  std::int32_t tensor_count = 0;
  std::int32_t group_count = 0;
  Rule rule = Rule::sgd;
};

}  // namespace demi::kernels

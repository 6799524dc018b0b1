#pragma once

#include <cstdint>

namespace demi::kernels {

/// How a state lies in memory, and whether kernels or decide() update it.
enum class StateForm : std::uint8_t {
  array,   // FP32 in the parameter's layout; TensorEntry::moment, in the order of the rule's states
  scalar,  // one FP32 number a tensor; TensorEntry::scalar. At most one, after the arrays
};

/// What an update rule keeps of a parameter from step to step, besides the count of its steps and
/// the master weights.
struct State {
  const char* name;  // torch.optim's, in state dicts and checkpoints
  /// A rule whose groups choose it has initial().
  float initial = 0;
  StateForm form = StateForm::array;
  /// The Coefficients::flags with which it is kept. 0: always.
  std::uint32_t kept_if = 0;
  /// kFirst fills it: where it is missing, the parameter's count of steps begins anew.
  bool begins_count = false;
  /// A mean or sum of squares: never below 0.
  bool is_square = false;
  /// The Coefficients::flags with which it stays in FP32, whatever the optimizer's options say: a
  /// maximum would grow by its roundings, and a difference of rounded numbers may be below 0.
  std::uint32_t fp32_if = 0;
  /// It always does: a sum that grows without end takes up each of its roundings for good.
  bool always_fp32 = false;
};

}  // namespace demi::kernels

#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string_view>

namespace demi::imported {

/// Refuses a normalisation over one value, as torch.nn.functional does: its variance is 0, and the
/// running one, which divides by one less than the number of values, NaN. Python's check is no
/// operation, so no graph has it.
struct StatisticsCheck {
  enum class Over { nothing, channels, instances, groups };

  Over over = Over::nothing;
  std::int32_t flag = -1;  // the operand that says whether the statistics are the input's; -1: yes

  /// Throws UsageError, which begins with the operation's place.
  void operator()(const torch::jit::Stack& operands, std::string_view place) const;
};

StatisticsCheck statistics_check(const c10::FunctionSchema& schema);

}  // namespace demi::imported

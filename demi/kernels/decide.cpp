#include "demi/kernels/decide.h"

#include <algorithm>

#include "demi/kernels/decision.h"
#include "demi/kernels/lanes.h"

namespace demi::kernels {

void reduce(const StepTable& table) {
  std::uint32_t greatest_bits = 0;
  const double squares = sum_over_blocks(table.block_count, [&](std::int64_t i) {
    greatest_bits = std::max(greatest_bits, table.partials[i].greatest_bits);
    return table.partials[i].sum_of_squares;
  });
  record_sums(table.inputs, squares, greatest_bits, *table.state);
}

void decide(const StepTable& table) {
  const std::int64_t taken = table.state->taken;
  if (!record_decision(table.inputs, *table.state)) return;
  // Tensors of one group are mostly at the same step: their numbers (two calls of pow) are computed
  // once, unless they have a state that enters them.
  std::int32_t group = -1;
  std::int64_t step = -1;
  double factor = 1;
  Coefficients shared{};
  for (std::int32_t t = 0; t < table.tensor_count; ++t) {
    const TensorEntry& tensor = table.tensors[t];
    if (!tensor.gradient) continue;
    *tensor.step += 1;
    if (tensor.group != group || *tensor.step != step || tensor.scalar ||
        tensor.rate_factor != factor) {
      group = tensor.group;
      step = *tensor.step;
      factor = tensor.rate_factor;
      const Group& numbers = table.groups[group];
      shared = group_coefficients(numbers.rule, numbers, learning_rate(numbers, taken), step,
                                  tensor.scalar, factor);
    }
    table.coefficients[t] = tensor_coefficients(shared, tensor);
  }
}

void decide_trust(const StepTable& table) {
  if (table.state->skipped != 0.0f) return;
  for (std::int32_t t = table.range.first_tensor; t < table.range.end_tensor; ++t) {
    const TensorEntry& tensor = table.tensors[t];
    if (!tensor.gradient) continue;
    const Group& group = table.groups[tensor.group];
    const TrustPartial* blocks = table.trust + table.first_block[t];
    const std::int64_t count = table.first_block[t + 1] - table.first_block[t];
    const double parameter =
        sum_over_blocks(count, [&](std::int64_t i) { return blocks[i].parameter_squares; });
    const double update =
        sum_over_blocks(count, [&](std::int64_t i) { return blocks[i].update_squares; });
    const double rate = learning_rate(group, table.state->taken - 1);
    table.coefficients[t].negative_rate = trust_rate(group, rate, parameter, update);
  }
}

}  // namespace demi::kernels

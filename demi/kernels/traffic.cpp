#include "demi/kernels/traffic.h"

#include <bit>

#include "demi/kernels/rule_info.h"

namespace demi::kernels {
namespace {

int copy_bytes(const TensorEntry& tensor) {
  int bytes = 0;
  for (int k = 0; k < 2; ++k) {
    if (tensor.copy[k]) bytes += bytes_of(tensor.copy_storage[k]);
  }
  return bytes;
}

/// Arrays that are read and written for each element.
int arrays_of(UpdateRule rule, const Group& group) {
  std::uint32_t kept = states_kept(rule, group);
  std::uint32_t bit = 1;
  for (const State& state : info_of(rule).states) {
    if (state.form == StateForm::scalar) kept &= ~bit;
    bit <<= 1;
  }
  return std::popcount(kept);
}

/// Bytes of all states of the tensor, each counted once.
std::int64_t state_bytes(const TensorEntry& tensor, int moments) {
  std::int64_t bytes = tensor.length * moments * 4;
  for (const Coded& array : tensor.coded_moment)
    if (array.values)
      bytes +=
          tensor.length * (bytes_of(array.codec) - 4) + 2 * scales_of(array.codec, tensor.length);
  return bytes;
}

/// Bytes of what holds the tensor's weights, counted once.
std::int64_t weight_bytes(const TensorEntry& tensor) {
  const CodedWeight& coded = tensor.coded_parameter;
  return tensor.length * (coded.parameter ? 2 + rest_bytes_of(coded.codec) : 4);
}

}  // namespace

Traffic traffic_of(const StepTable& table) {
  Traffic traffic;
  std::int32_t group = -1;  // most tensors are of the group before
  int moments = 0;
  bool has_trust = false, reads_again = false;
  for (std::int32_t t = 0; t < table.tensor_count; ++t) {
    const TensorEntry& tensor = table.tensors[t];
    if (!tensor.gradient) continue;
    if (tensor.group != group) {
      const Group& numbers = table.groups[tensor.group];
      moments = arrays_of(numbers.rule, numbers);
      has_trust = info_of(numbers.rule).has_trust;
      reads_again = reads_gradient_again(numbers.rule, numbers);
    }
    group = tensor.group;
    const std::int64_t gradient = bytes_of(tensor.gradient_storage) * tensor.length;
    const std::int64_t states = state_bytes(tensor, moments);
    const std::int64_t weights = weight_bytes(tensor);
    const std::int64_t copies = copy_bytes(tensor) * tensor.length;
    traffic.elements += tensor.length;
    traffic.measure += gradient;
    if (info_of(table.groups[tensor.group].rule).applied_by) {
      // Both directions, which have 16 bits where products are fast; products besides.
      traffic.update += gradient + 2 * states + 2 * tensor.length;
      traffic.apply_trust +=
          (reads_again ? gradient : 0) + 2 * tensor.length + 2 * weights + copies;
    } else if (has_trust) {
      traffic.update += gradient + weights + 2 * states;
      traffic.apply_trust += 2 * weights + states + copies;
    } else {
      traffic.update += gradient + 2 * weights + 2 * states + copies;
    }
  }
  return traffic;
}

}  // namespace demi::kernels

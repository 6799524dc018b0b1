#include "demi/kernels/traffic.h"

#include "demi/kernels/formulas.h"

namespace demi::kernels {
namespace {

int copy_bytes(const TensorEntry& tensor) {
  int bytes = 0;
  for (int k = 0; k < 2; ++k) {
    if (tensor.copy[k]) bytes += bytes_of(tensor.copy_storage[k]);
  }
  return bytes;
}

}  // namespace

Traffic traffic_of(const StepTable& table) {
  constexpr int kReadAndWritten = 8, kRead = 4;
  Traffic traffic;
  for (std::int32_t t = 0; t < table.tensor_count; ++t) {
    const TensorEntry& tensor = table.tensors[t];
    if (!tensor.gradient) continue;
    const Group& group = table.groups[tensor.group];
    const int moments = moment_count(
        table.rule, (group.momentum != 0.0 ? kMomentum : 0u) | (group.amsgrad ? kAmsgrad : 0u));
    const int gradient = bytes_of(tensor.gradient_storage);
    const bool lamb = table.rule == UpdateRule::lamb;
    traffic.elements += tensor.length;
    traffic.measure += gradient * tensor.length;
    if (lamb) {
      traffic.update += (gradient + kRead + moments * kReadAndWritten) * tensor.length;
      traffic.apply_trust +=
          (kReadAndWritten + moments * kRead + copy_bytes(tensor)) * tensor.length;
    } else {
      traffic.update +=
          (gradient + kReadAndWritten + moments * kReadAndWritten + copy_bytes(tensor)) *
          tensor.length;
    }
  }
  return traffic;
}

}  // namespace demi::kernels

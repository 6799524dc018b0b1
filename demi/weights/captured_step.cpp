#include "demi/weights/captured_step.h"

#include "demi/tensor/version.h"

namespace demi::weights {
namespace {

at::Tensor find_in(const CapturedStep& step, const at::Tensor& leaf, c10::ScalarType dtype) {
  for (const auto& copy : step.copies)
    if (copy.scalar_type() == dtype && fits(copy, leaf)) return copy;
  return {};
}

}  // namespace

bool fits(const at::Tensor& copy, const at::Tensor& leaf) {
  return tensor::same(copy.sizes(), leaf.sizes()) && tensor::same(copy.strides(), leaf.strides());
}

std::optional<at::Tensor> memory_for(CapturedSteps& steps, const at::Tensor& leaf,
                                     c10::ScalarType dtype) {
  std::erase_if(steps, [](const auto& step) { return step.expired(); });
  std::optional<at::Tensor> memory;
  for (const auto& weak : steps) {
    const auto step = weak.lock();
    if (!step || step->parameter != leaf.const_data_ptr()) continue;
    const at::Tensor copy = find_in(*step, leaf, dtype);
    memory = !memory || memory->is_same(copy) ? copy : at::Tensor();
  }
  return memory;
}

}  // namespace demi::weights

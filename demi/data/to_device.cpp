#include "demi/data/to_device.h"

#include <ATen/ATen.h>

namespace demi::data {
namespace {

// Pinning copies the tensor once: one whose elements share memory (expand) would be written to in
// many places at once.
bool can_be_pinned(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         tensor.numel() > 0 && tensor.is_non_overlapping_and_dense();
}

at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined()) return tensor;
  // Out of pageable memory a copy waits for everything that the stream has still to do; out of
  // pinned memory it takes its place behind that. LibTorch does not give the pinned block away
  // before the copy is done.
  if (device.is_cuda() && can_be_pinned(tensor))
    return tensor.pin_memory().to(device, /*non_blocking=*/true);
  return tensor.to(device);
}

bool are_lengths(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 1 && tensor.scalar_type() == at::kLong;
}

}  // namespace

Batch to_device(const Batch& batch, c10::Device device) {
  return {.input = moved(batch.input, device),
          .target = moved(batch.target, device),
          .lengths = are_lengths(batch.lengths) ? batch.lengths : moved(batch.lengths, device)};
}

}  // namespace demi::data

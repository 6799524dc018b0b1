#include "demi/checkpoint/snapshot.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <set>

#include "demi/core/huge_pages.h"

namespace demi::checkpoint {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  const bool pinned = tensor.is_cuda();
  at::Tensor copy = at::empty(
      tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(pinned));
  if (!pinned) prefer_huge_pages(copy.mutable_data_ptr(), copy.nbytes());
  return copy.copy_(tensor.detach(), /*non_blocking=*/pinned);
}

}  // namespace

Snapshot::Snapshot(const Checkpoint& original)
    : copy_{.model = {},
            .state = {},
            .numbers = original.numbers,
            .text = original.text,
            .model_text = original.model_text,
            .run = original.run,
            .parameters = original.parameters} {
  std::set<c10::DeviceIndex> devices;
  const auto copy_all = [&devices](const NamedTensors& from, NamedTensors& to) {
    for (const auto& [name, tensor] : from) {
      if (tensor.is_cuda()) devices.insert(tensor.get_device());
      to.emplace(name, copy_of(tensor));
    }
  };
  copy_all(original.model, copy_.model);
  copy_all(original.state, copy_.state);
  for (const c10::DeviceIndex index : devices) {
    const c10::Device device(c10::kCUDA, index);
    enqueued_.emplace_back(c10::kCUDA)
        .record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device));
  }
}

const Checkpoint& Snapshot::finish() const {
  for (const c10::Event& event : enqueued_) event.synchronize();
  return copy_;
}

}  // namespace demi::checkpoint

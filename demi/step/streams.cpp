#include "demi/step/streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "demi/kernels/cuda_kernels.h"
#include "demi/tensor/capture.h"

namespace demi::optim {
namespace {

using Guard = c10::impl::VirtualGuardImpl;

struct Kept {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, at::Tensor> tensors;
};

Kept& kept() {
  static Kept* all = new Kept;  // never destroyed: no device is asked to free memory at exit
  return *all;
}

}  // namespace

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return Guard(device.type()).getStream(device);
}

bool is_capturing(c10::Device device) {
  if (device.is_cpu()) return false;
  const c10::Stream stream = *current_stream(device);
  c10::OptionalDeviceGuard guard;
  if (device.is_cuda()) {
    guard.reset_device(device);  // cuda_kernels() asks the current device
    // demi's kernels can tell with any LibTorch.
    if (const auto* ours = kernels::cuda_kernels()) return ours->capturing(stream.native_handle());
  }
  return tensor::is_capturing(Guard(device.type()), stream);
}

std::optional<c10::Stream> ordered_stream(c10::Device device) {
  if (device.is_cpu() || is_capturing(device)) return std::nullopt;
  return current_stream(device);
}

void wait_for(c10::Stream written_on) {
  const c10::Stream reader = *current_stream(written_on.device());
  if (reader == written_on) return;
  c10::Event event(written_on.device_type());
  event.record(written_on);
  event.block(reader);
}

bool StreamUse::is_new(c10::Stream stream) {
  if (std::find(seen_.begin(), seen_.end(), stream) != seen_.end()) return false;
  seen_.push_back(stream);
  return true;
}

void keep_for_graphs(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const std::lock_guard lock(kept().mutex);
  kept().tensors.emplace(tensor.unsafeGetTensorImpl(), tensor);
}

std::size_t kept_for_graphs() {
  const std::lock_guard lock(kept().mutex);
  return kept().tensors.size();
}

}  // namespace demi::optim

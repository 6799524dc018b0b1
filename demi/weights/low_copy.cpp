#include "demi/weights/low_copy.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <limits>
#include <utility>

namespace demi::weights {
namespace {

at::Tensor find_in(const CapturedStep& step, const at::Tensor& leaf, c10::ScalarType dtype) {
  for (const auto& copy : step.copies)
    if (copy.scalar_type() == dtype && fits(copy, leaf)) return copy;
  return {};
}

}  // namespace

Counters& counters() {
  static Counters all{.capacity = std::numeric_limits<std::int64_t>::max()};
  return all;
}

Footprint::Footprint(std::int64_t bytes) : bytes_(bytes) {
  counters().copies += 1;
  counters().bytes += bytes_;
}

Footprint::~Footprint() {
  if (bytes_ < 0) return;
  counters().copies -= 1;
  counters().bytes -= bytes_;
}

Footprint::Footprint(Footprint&& other) noexcept : bytes_(std::exchange(other.bytes_, -1)) {}

Footprint& Footprint::operator=(Footprint&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::optional<LeafState> state_of(const at::Tensor& leaf, bool hooks) {
  const std::int64_t version = tensor::version_of(*leaf.unsafeGetTensorImpl());
  std::shared_ptr<StorageMark> mark;
  if (hooks) {
    mark = StorageMark::hooked(*leaf.storage().unsafeGetStorageImpl());
    if (!mark) return std::nullopt;
  } else if (version < 0) {
    return std::nullopt;  // nothing would report a write
  }
  const std::uint64_t epoch = mark ? mark->epoch() : 0;
  return LeafState{.mark = std::move(mark),
                   .epoch = epoch,
                   .version = version,
                   .data = leaf.storage().data(),
                   .storage = leaf.storage().getWeakStorageImpl(),
                   .storage_offset = leaf.storage_offset()};
}

std::optional<LowCopy> announce_copy(const at::Tensor& leaf, c10::ScalarType dtype, bool hooks,
                                     const LowCopy* replaces) {
  const std::int64_t bytes = leaf.numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
  if (bytes == 0 || !leaf.is_non_overlapping_and_dense()) return std::nullopt;
  const std::int64_t others = counters().bytes - (replaces ? replaces->footprint.bytes() : 0);
  if (others + bytes > counters().capacity) return std::nullopt;
  std::optional<LeafState> state = state_of(leaf, hooks);
  if (!state) return std::nullopt;
  return LowCopy{*std::move(state), dtype,        /*low=*/{},      /*aliases=*/{},
                 /*low_version=*/0,
                 /*in_step=*/false, /*ready=*/{}, Footprint(bytes)};
}

bool fill(LowCopy& copy, const at::Tensor& leaf, const at::Tensor& memory) {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  const CurrentStream current(leaf);
  copy.low =
      memory.defined() ? at::Tensor(memory).copy_(leaf.detach()) : leaf.detach().to(copy.dtype);
  counters().casts += 1;
  copy.low_version = tensor::version_of(*copy.low.unsafeGetTensorImpl());
  copy.ready = ReadyOn(current);
  if (current && memory.defined())
    current.streams().recordDataPtrOnStream(memory.storage().data_ptr(), current.stream());
  return copy.low.strides() == leaf.strides();
}

void renew(LowCopy& copy, const at::Tensor& leaf) {
  copy.in_step = false;
  auto& impl = *leaf.unsafeGetTensorImpl();
  copy.low.unsafeGetTensorImpl()->bump_version();
  if (copy.mark) {
    if (!copy.mark->rehook(*leaf.storage().unsafeGetStorageImpl()))
      return;  // another storage since begin(), or no longer to be hooked: stays stale
    copy.epoch = copy.mark->epoch();
  }
  copy.version = tensor::version_of(impl);
  copy.low_version = tensor::version_of(*copy.low.unsafeGetTensorImpl());
}

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
    if (!step->writes && !copy.defined()) continue;
    memory = !memory || memory->is_same(copy) ? copy : at::Tensor();
  }
  return memory;
}

}  // namespace demi::weights

#include "demi/weights/low_copy.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <limits>
#include <utility>

namespace demi::weights {

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

std::optional<LowCopy> make_copy(const at::Tensor& leaf, c10::ScalarType dtype, bool hooks) {
  const std::int64_t bytes = leaf.numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
  if (bytes == 0 || !leaf.is_non_overlapping_and_dense()) return std::nullopt;
  if (counters().bytes + bytes > counters().capacity) return std::nullopt;
  const c10::TensorImpl& impl = *leaf.unsafeGetTensorImpl();
  const std::int64_t version = version_of(impl);
  std::shared_ptr<StorageMark> mark;
  if (hooks) {
    mark = StorageMark::hooked(*leaf.storage().unsafeGetStorageImpl());
    if (!mark) return std::nullopt;
  } else if (version < 0) {
    return std::nullopt;  // nothing would tell of a write
  }
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  at::Tensor low = leaf.detach().to(dtype);
  counters().casts += 1;
  if (low.strides() != leaf.strides()) return std::nullopt;
  const std::uint64_t epoch = mark ? mark->epoch() : 0;
  const std::int64_t low_version = version_of(*low.unsafeGetTensorImpl());
  return LowCopy{.dtype = dtype,
                 .low = std::move(low),
                 .alias = {},
                 .mark = std::move(mark),
                 .epoch = epoch,
                 .version = version,
                 .low_version = low_version,
                 .data = leaf.storage().data(),
                 .storage = leaf.storage().getWeakStorageImpl(),
                 .storage_offset = leaf.storage_offset(),
                 .footprint = Footprint(bytes)};
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
  copy.version = version_of(impl);
  copy.low_version = version_of(*copy.low.unsafeGetTensorImpl());
}

}  // namespace demi::weights

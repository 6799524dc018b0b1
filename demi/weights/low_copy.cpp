#include "demi/weights/low_copy.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <limits>
#include <utility>

namespace demi::weights {
namespace {

const c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.unsafe_storage().unsafeGetStorageImpl();
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

std::int64_t version_of(const c10::TensorImpl& tensor) {
  const auto& counter = tensor.version_counter();
  return counter.enabled() ? static_cast<std::int64_t>(counter.current_version()) : -1;
}

bool is_current(const LowCopy& copy, const c10::TensorImpl& leaf) {
  if (copy.mark && !(copy.mark->intact(storage_of(leaf)) && copy.mark->epoch() == copy.epoch))
    return false;
  const c10::TensorImpl& low = *copy.low.unsafeGetTensorImpl();
  return version_of(leaf) == copy.version && version_of(low) == copy.low_version &&
         leaf.data() == copy.data && leaf.sizes() == low.sizes() && leaf.strides() == low.strides();
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
  return LowCopy{dtype,   std::move(low), {},          std::move(mark), epoch,
                 version, low_version,    impl.data(), false,           Footprint(bytes)};
}

void renew(LowCopy& copy, const at::Tensor& leaf) {
  copy.in_step = false;
  auto& impl = *leaf.unsafeGetTensorImpl();
  copy.low.unsafeGetTensorImpl()->bump_version();
  if (copy.mark) {
    auto mark = StorageMark::hooked(*leaf.storage().unsafeGetStorageImpl());
    if (mark != copy.mark)
      return;  // another storage since begin_step(), or no longer to be hooked: stays stale
    copy.epoch = copy.mark->epoch();
  }
  copy.version = version_of(impl);
  copy.low_version = version_of(*copy.low.unsafeGetTensorImpl());
}

}  // namespace demi::weights

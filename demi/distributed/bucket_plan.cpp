#include "demi/distributed/bucket_plan.h"

#include <utility>

namespace demi::distributed {

using c10::ScalarType;

ScalarType wider_of(ScalarType a, ScalarType b) { return c10::promoteTypes(a, b); }

namespace {

std::int64_t element_bytes(const Bucket& bucket) {
  return static_cast<std::int64_t>(c10::elementSize(bucket.dtype));
}

// Makes the end of the last bucket one of its own, of at most `bytes` or one parameter. A bucket of
// up to twice as much stays whole: what that would gain is little compared with one more
// collective.
void part_the_last(std::vector<Bucket>& buckets, std::int64_t bytes) {
  if (buckets.empty()) return;
  Bucket& last = buckets.back();
  const std::int64_t most = bytes / element_bytes(last);
  if (last.elements <= 2 * most) return;
  std::size_t kept = 0;
  while (kept + 1 < last.parameters.size() && last.elements - last.offsets[kept] > most) ++kept;
  if (kept == 0) return;
  const auto cut = static_cast<std::ptrdiff_t>(kept);
  const std::int64_t before = last.offsets[kept];
  Bucket end{last.device, last.dtype, {}, {}, last.elements - before};
  end.parameters.assign(last.parameters.begin() + cut, last.parameters.end());
  for (std::size_t slot = kept; slot < last.offsets.size(); ++slot)
    end.offsets.push_back(last.offsets[slot] - before);
  last.parameters.resize(kept);
  last.offsets.resize(kept);
  last.elements = before;
  buckets.push_back(std::move(end));
}

}  // namespace

BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                        const std::vector<std::size_t>& order, std::optional<ScalarType> wire,
                        BucketLimits limits) {
  BucketPlan plan;
  plan.bucket.resize(parameters.size(), BucketPlan::kNoBucket);
  plan.slot.resize(parameters.size());
  for (const PlannedParameter& p : parameters) plan.gradient_dtype.push_back(p.gradient_dtype);
  std::vector<Bucket> open;  // one a device and dtype, by the last gradient that came
  const auto close = [&](std::size_t which) {
    plan.buckets.push_back(std::move(open[which]));
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
  };
  for (const std::size_t index : order) {
    const PlannedParameter& p = parameters[index];
    if (!p.is_sent) continue;
    const ScalarType dtype =
        wire && p.gradient_dtype != ScalarType::Double ? *wire : p.gradient_dtype;
    Bucket bucket{p.device, dtype, {}, {}, 0};
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].device != p.device || open[i].dtype != dtype) continue;
      bucket = std::move(open[i]);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    bucket.parameters.push_back(index);
    bucket.offsets.push_back(bucket.elements);
    bucket.elements += p.elements;
    open.push_back(std::move(bucket));
    const std::int64_t bytes = open.back().elements * element_bytes(open.back());
    if (bytes >= (plan.buckets.empty() ? limits.first_bytes : limits.bytes)) close(open.size() - 1);
  }
  while (!open.empty()) close(0);
  part_the_last(plan.buckets, limits.first_bytes);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (std::size_t slot = 0; slot < plan.buckets[b].parameters.size(); ++slot) {
      plan.bucket[plan.buckets[b].parameters[slot]] = b;
      plan.slot[plan.buckets[b].parameters[slot]] = slot;
    }
  }
  return plan;
}

}  // namespace demi::distributed

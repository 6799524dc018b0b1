#include "demi/distributed/bucket_plan.h"

#include <c10/core/ScalarType.h>

namespace demi::distributed {

using c10::ScalarType;

ScalarType wider_of(ScalarType a, ScalarType b) { return c10::promoteTypes(a, b); }

BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                        const std::vector<std::size_t>& order, std::optional<ScalarType> wire,
                        BucketLimits limits) {
  BucketPlan plan;
  plan.bucket.resize(parameters.size());
  plan.slot.resize(parameters.size());
  for (const PlannedParameter& p : parameters) plan.gradient_dtype.push_back(p.gradient_dtype);
  std::vector<Bucket> open;  // one a device and dtype, by the last gradient that came
  const auto close = [&](std::size_t which) {
    plan.buckets.push_back(std::move(open[which]));
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
  };
  for (const std::size_t index : order) {
    const PlannedParameter& p = parameters[index];
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
    const std::int64_t bytes =
        open.back().elements * static_cast<std::int64_t>(c10::elementSize(dtype));
    if (bytes >= (plan.buckets.empty() ? limits.first_bytes : limits.bytes)) close(open.size() - 1);
  }
  while (!open.empty()) close(0);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (std::size_t slot = 0; slot < plan.buckets[b].parameters.size(); ++slot) {
      plan.bucket[plan.buckets[b].parameters[slot]] = b;
      plan.slot[plan.buckets[b].parameters[slot]] = slot;
    }
  }
  return plan;
}

}  // namespace demi::distributed

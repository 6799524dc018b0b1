#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "demi/core/export.h"

namespace demi::distributed {

/// The properties of a parameter that the plan depends on. The same on all ranks.
struct PlannedParameter {
  std::int64_t elements = 0;
  c10::Device device{c10::DeviceType::CPU};
  c10::ScalarType gradient_dtype = c10::ScalarType::Float;  // widest on any rank
  bool is_sent = true;  // false: it is frozen, and no rank has a gradient of it
};

/// Gradients that travel as one tensor of one dtype: the elements of each parameter one after the
/// other, then the flags.
struct Bucket {
  c10::Device device{c10::DeviceType::CPU};
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::size_t> parameters;
  std::vector<std::int64_t> offsets;  // of each parameter's elements
  std::int64_t elements = 0;          // of all gradients

  /// The place of a parameter's flag, which is set if this rank has a gradient of it.
  std::int64_t used_flag(std::size_t slot) const {
    return elements + static_cast<std::int64_t>(slot);
  }
  /// Three flags of the whole round, which follow those of the parameters. Only the last bucket
  /// sets them.
  enum class RoundFlag : std::uint8_t { kWider, kNotNarrower, kLate };
  std::int64_t round_flag(RoundFlag flag) const {
    return used_flag(parameters.size()) + static_cast<std::int64_t>(flag);
  }
  std::int64_t all_elements() const { return used_flag(parameters.size()) + 3; }
};

struct BucketPlan {
  std::vector<Bucket> buckets;  // in the order in which they are sent
  // Each parameter's gradient dtype, bucket, and slot in that.
  std::vector<c10::ScalarType> gradient_dtype;
  std::vector<std::size_t> bucket, slot;
  static constexpr std::size_t kNoBucket = static_cast<std::size_t>(-1);  // of one that is not sent
  bool is_sent(std::size_t parameter) const { return bucket[parameter] != kNoBucket; }
};

struct BucketLimits {
  /// Limit of the first bucket, which is sent as early as possible, and of the last one, which is
  /// sent when backward has ended: nothing hides it.
  std::int64_t first_bytes = 0;
  std::int64_t bytes = 0;  // limit of the others
};

/// `order`: each parameter once, in the order in which gradients come. A bucket is closed when it
/// has reached its limit; buckets are sent in the order in which they close. If the last one is
/// above 2 first_bytes, only its end waits for the end of backward: what fits into first_bytes, at
/// least one parameter. The rest is a bucket before it. `wire`: the dtype in which 16-bit and FP32
/// gradients travel; none: their own. Gradients of FP64 always keep theirs.
DEMI_API BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                                 const std::vector<std::size_t>& order,
                                 std::optional<c10::ScalarType> wire, BucketLimits limits);

/// The dtype that holds both without loss: FP32 for fp16 and bf16.
DEMI_API c10::ScalarType wider_of(c10::ScalarType a, c10::ScalarType b);

}  // namespace demi::distributed

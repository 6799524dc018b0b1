#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi {

/// A dtype policy as Keras defines it (tf.keras.mixed_precision.Policy): the dtype in which a layer
/// computes and the dtype in which its variables are stored.
///
///     name             compute_dtype  variable_dtype
///     mixed_float16    fp16           fp32
///     mixed_bfloat16   bf16           fp32
///     float64, float32, float16, bfloat16: both as named
///
/// A value type, cheap to copy. Under the mixed policies softmax runs in FP32 and returns FP32, as
/// Keras advises.
class DEMI_API Policy {
 public:
  Policy() = default;  // float32

  /// Throws UsageError, with the nearest known name and the list, for an unknown name.
  explicit Policy(std::string_view name);

  std::string_view name() const;           // as in the table above
  c10::ScalarType compute_dtype() const;   // in which a layer computes
  c10::ScalarType variable_dtype() const;  // in which its variables are stored
  /// Whether the two differ.
  bool is_mixed() const { return compute_dtype() != variable_dtype(); }

  /// All names of policies, in the order of the table above.
  static std::vector<std::string> names();

  bool operator==(const Policy&) const = default;

 private:
  int row_ = 3;
};

/// The policy of the process, which demi::Trainer and an Autocast without arguments use. float32 by
/// default. Any thread. The last form throws as Policy(name).
DEMI_API Policy global_policy();
DEMI_API void set_global_policy(const Policy& policy);
DEMI_API void set_global_policy(std::string_view name);

}  // namespace demi

#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi {

/// What an autocast region does with the floating point arguments of an op (FP64 ones are never
/// cast).
enum class OpCategory : std::uint8_t {
  lower_precision,  // cast to the region's dtype
  fp32,             // cast to FP32
  fp32_output,  // arguments as they are, FP32 as the output dtype unless the call names one; the op
                // sums in FP32
  promote,      // cast to the widest dtype among them; FP16 beside BF16 gives FP32
  banned,       // refused, with advice
  unchanged,    // run as given
};

/// "lower_precision" and so on, as printed and as read from files.
DEMI_API std::string_view name_of(OpCategory category);

/// Throws UsageError with the nearest right name.
DEMI_API OpCategory parse_op_category(std::string_view name);

/// One line of the table. `op` is "softmax.int" or "namespace::op.overload"; without a namespace it
/// is aten's.
struct OpRule {
  std::string op;
  OpCategory category;
  std::string reason;
};

/// Which op runs in what: changes upon LibTorch's own lists for the device. A value.
///
///     demi::OpPolicy policy;
///     policy.set("softmax", demi::OpCategory::fp32);
///     demi::Autocast region(torch::kCPU, {.policy = policy});
///
/// An op that no list names gets its autocast kernel when a policy that names it is first used: do
/// that before threads run the op.
class DEMI_API OpPolicy {
 public:
  OpPolicy() = default;

  /// "default": LibTorch's lists. "fp32_reductions": the ops that LibTorch's CUDA lists run in FP32
  /// and its CPU lists do not name (softmax, layer_norm, cumsum, norms, sums ...) run in FP32 on
  /// every device. "fp32_softmax": softmax and log_softmax in FP32, as Keras' mixed policies keep
  /// them. Throws UsageError with the nearest right name.
  static OpPolicy named(std::string_view name);
  static std::vector<std::string> names();

  /// A file with a line for each op: `softmax fp32` or `softmax.int = fp32`; `policy NAME` starts
  /// from a named one; `#` starts a comment. Throws DataError where it cannot be read, UsageError
  /// with the line's number where it is wrong.
  static OpPolicy from_file(const std::filesystem::path& path);

  /// Moves an op, all its overloads where none is named. Throws UsageError for an op that LibTorch
  /// does not know, with the nearest right name, and for one that writes to its arguments.
  OpPolicy& set(std::string_view op, OpCategory category,
                std::string_view reason = "set by the user");

  /// What differs from LibTorch's lists, one rule for each overload, the last call first in effect.
  const std::vector<OpRule>& changes() const { return changes_; }

  /// The whole table for this device, sorted by op.
  std::vector<OpRule> rules(c10::DeviceType device) const;

 private:
  std::vector<OpRule> changes_;
};

/// The policy of regions that name none, and of raw at::autocast users. A change shows at the next
/// op, in every thread. May be called from any thread.
DEMI_API OpPolicy global_op_policy();
DEMI_API void set_global_op_policy(const OpPolicy& policy);

}  // namespace demi

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"

namespace demi::kernels {

/// Host memory behind a StepTable: entries, blocks, groups, partial results, state. Build it once
/// for a set of tensors; from step to step only pointers (gradients above all), factors, limits,
/// hyper-parameters and inputs change. Not thread-safe; the tables it hands out are views and live
/// as long as it is neither moved nor destroyed.
class DEMI_API StepPlan {
 public:
  /// Throws UsageError for an entry that no pass could work on: an array missing for its rule, no
  /// step counter, a copy without storage, a negative length, a group that does not exist.
  /// Gradients may be missing. Tensors of groups with one rule stand in a row, or cost a launch
  /// more.
  StepPlan(std::vector<TensorEntry> tensors, std::vector<Group> groups);
  /// All groups have this rule.
  StepPlan(UpdateRule rule, std::vector<TensorEntry> tensors, std::vector<Group> groups);

  /// The tensors by rule, in order. Without any tensor one empty range.
  std::span<const RuleRange> ranges() const { return ranges_; }
  /// These tensors, which are of one range, as a range of their own.
  RuleRange range_of(std::int32_t first_tensor, std::int32_t end_tensor) const;
  /// Pointers, factor, limit and gradient_storage may be changed; length and group may not.
  std::span<TensorEntry> tensors() { return tensors_; }
  std::span<const TensorEntry> tensors() const { return tensors_; }
  /// May be changed, except for the rule and what decides which moments exist (momentum 0 or not,
  /// amsgrad).
  std::span<Group> groups() { return groups_; }
  StepInputs& inputs() { return inputs_; }
  StepState& state() { return state_; }
  const StepState& state() const { return state_; }
  std::int64_t block_count() const { return static_cast<std::int64_t>(blocks_.size()); }

  /// For the CPU passes. The range is the first.
  StepTable table();

  /// For the CUDA passes the table lies in one piece of device memory of device_bytes (aligned to
  /// 16), whose first upload_bytes come from the host. pack writes these to `staging` (host,
  /// 16-aligned) and returns a table whose pointers are into `device`; the caller copies staging to
  /// device before the next pass. `state` is device memory, kept from step to step (zero bytes are
  /// a valid start). inputs and all pointers in the entries, groups' scheduled_rates too, must be
  /// device pointers. Repacking is needed only if something changed.
  std::size_t upload_bytes() const;
  std::size_t device_bytes() const;
  StepTable pack(std::byte* staging, std::byte* device, StepState* state) const;
  /// Writes the groups alone, into what pack() has written.
  void pack_groups(std::byte* staging) const;

 private:
  /// A table with everything but its pointers to arrays.
  StepTable without_arrays() const;
  /// Adds the tensor's blocks, and the tensor to the last range if that has its rule.
  void add(const TensorEntry& tensor);

  std::vector<TensorEntry> tensors_;
  std::vector<Group> groups_;
  std::vector<Block> blocks_;
  std::vector<std::int64_t> first_block_;  // (tensors + 1)
  std::vector<Coefficients> coefficients_;
  std::vector<Partial> partials_;
  std::vector<TrustPartial> trust_;  // if a rule has a trust ratio
  std::vector<RuleRange> ranges_;
  StepInputs inputs_;
  StepState state_;
};

}  // namespace demi::kernels

#include "demi/kernels/step_plan.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "demi/core/error.h"
#include "demi/kernels/rule_info.h"

namespace demi::kernels {
namespace {

[[noreturn]] void refuse(std::size_t tensor, std::string_view what, std::string_view accepted) {
  throw UsageError({.where = "kernels.StepPlan",
                    .what = what,
                    .seen = "tensor " + std::to_string(tensor),
                    .accepted = accepted});
}

void check_copies(std::size_t t, const TensorEntry& tensor) {
  for (int k = 0; k < 2; ++k) {
    if (tensor.copy[k] && tensor.copy_storage[k] == Storage::none) {
      refuse(t, "a copy has no storage", "fp32, fp16 or bf16");
    }
  }
}

void check(std::size_t t, const TensorEntry& tensor, const std::vector<Group>& groups) {
  if (tensor.length < 0) refuse(t, "the length is negative", "0 or more");
  if (tensor.group < 0 || tensor.group >= static_cast<std::int32_t>(groups.size())) {
    refuse(t, "the parameter group does not exist",
           "0 to " + std::to_string(groups.size()) + " - 1");
  }
  if (!tensor.step && !tensor.measured_only)
    refuse(t, "there is no step counter", "a pointer to one");
  if (tensor.gradient && tensor.gradient_storage == Storage::none) {
    refuse(t, "the gradient has no storage", "fp32, fp16 or bf16");
  }
  check_copies(t, tensor);
  if (tensor.length == 0 || tensor.measured_only) return;
  const CodedWeight& coded = tensor.coded_parameter;
  const bool is_coded = coded.parameter && (coded.rest || rest_bytes_of(coded.codec) == 0);
  if (!tensor.parameter && !is_coded)
    refuse(t, "there is no parameter", "FP32 elements, or a 16-bit parameter and what it lacks");
  const UpdateRule rule = groups[tensor.group].rule;
  const std::uint32_t kept = states_kept(rule, groups[tensor.group]);
  for (std::size_t k = 0; k < info_of(rule).states.size(); ++k) {
    if ((kept >> k & 1u) == 0) continue;
    const bool is_scalar = info_of(rule).states[k].form == StateForm::scalar;
    if (is_scalar ? !tensor.scalar : !tensor.moment[k] && !tensor.coded_moment[k].values)
      refuse(t, "a moment is missing", "each state of the rule");
  }
}

std::size_t aligned(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

template <class T>
std::size_t bytes_in(const std::vector<T>& values) {
  return aligned(values.size() * sizeof(T));
}

std::vector<Group> with_rule_of_all(std::vector<Group> groups, UpdateRule rule) {
  for (Group& group : groups) group.rule = rule;
  return groups;
}

}  // namespace

StepPlan::StepPlan(UpdateRule rule, std::vector<TensorEntry> tensors, std::vector<Group> groups)
    : StepPlan(std::move(tensors), with_rule_of_all(std::move(groups), rule)) {}

StepPlan::StepPlan(std::vector<TensorEntry> tensors, std::vector<Group> groups)
    : tensors_(std::move(tensors)), groups_(std::move(groups)) {
  first_block_.push_back(0);
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    check(t, tensors_[t], groups_);
    add(tensors_[t]);
  }
  if (ranges_.empty())
    ranges_.push_back({.rule = groups_.empty() ? UpdateRule() : groups_[0].rule});
  coefficients_.resize(tensors_.size());
  partials_.resize(blocks_.size());
  for (const RuleRange& range : ranges_)
    if (info_of(range.rule).has_trust) trust_.resize(blocks_.size());
}

void StepPlan::add(const TensorEntry& tensor) {
  const auto t = static_cast<std::int32_t>(first_block_.size()) - 1;
  const UpdateRule rule = groups_[static_cast<std::size_t>(tensor.group)].rule;
  if (ranges_.empty() || ranges_.back().rule != rule)
    ranges_.push_back({.first_block = block_count(), .first_tensor = t, .rule = rule});
  RuleRange& range = ranges_.back();
  for (const Coded& array : tensor.coded_moment) {
    range.coded |= array.values != nullptr;
    range.grouped |= array.values && has_scales(array.codec);
  }
  range.coded |= tensor.coded_parameter.parameter != nullptr;
  const std::int64_t count = (tensor.length + kBlock - 1) / kBlock;
  for (std::int64_t i = 0; i < count; ++i) blocks_.push_back({t, static_cast<std::int32_t>(i)});
  first_block_.push_back(block_count());
  range.end_tensor = t + 1;
  range.end_block = block_count();
}

RuleRange StepPlan::range_of(std::int32_t first_tensor, std::int32_t end_tensor) const {
  const auto is_after = [&](const RuleRange& range) { return first_tensor < range.end_tensor; };
  RuleRange part = *std::ranges::find_if(ranges_, is_after);
  part.first_tensor = first_tensor;
  part.end_tensor = end_tensor;
  part.first_block = first_block_[static_cast<std::size_t>(first_tensor)];
  part.end_block = first_block_[static_cast<std::size_t>(end_tensor)];
  return part;
}

StepTable StepPlan::without_arrays() const {
  StepTable table;
  table.inputs = inputs_;
  table.block_count = block_count();
  table.tensor_count = static_cast<std::int32_t>(tensors_.size());
  table.group_count = static_cast<std::int32_t>(groups_.size());
  table.range = ranges_.front();
  return table;
}

StepTable StepPlan::table() {
  StepTable table = without_arrays();
  table.tensors = tensors_.data();
  table.blocks = blocks_.data();
  table.first_block = first_block_.data();
  table.groups = groups_.data();
  table.coefficients = coefficients_.data();
  table.partials = partials_.data();
  table.trust = trust_.empty() ? nullptr : trust_.data();
  table.state = &state_;
  return table;
}

std::size_t StepPlan::upload_bytes() const {
  return bytes_in(tensors_) + bytes_in(blocks_) + bytes_in(first_block_) + bytes_in(groups_);
}

std::size_t StepPlan::device_bytes() const {
  return upload_bytes() + bytes_in(coefficients_) + bytes_in(partials_) + bytes_in(trust_);
}

StepTable StepPlan::pack(std::byte* staging, std::byte* device, StepState* state) const {
  std::size_t at = 0;
  const auto upload = [&](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    if (!values.empty()) std::memcpy(staging + at, values.data(), values.size() * sizeof(T));
    auto* place = reinterpret_cast<const T*>(device + at);
    at += bytes_in(values);
    return place;
  };
  const auto reserve = [&](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    auto* place = reinterpret_cast<T*>(device + at);
    at += bytes_in(values);
    return place;
  };
  StepTable table = without_arrays();
  table.tensors = upload(tensors_);  // these two change from step to step
  table.groups = upload(groups_);
  table.blocks = upload(blocks_);
  table.first_block = upload(first_block_);
  table.coefficients = reserve(coefficients_);
  table.partials = reserve(partials_);
  table.trust = trust_.empty() ? nullptr : reserve(trust_);
  table.state = state;
  return table;
}

void StepPlan::pack_groups(std::byte* staging) const {
  if (!groups_.empty())
    std::memcpy(staging + bytes_in(tensors_), groups_.data(), groups_.size() * sizeof(Group));
}

}  // namespace demi::kernels

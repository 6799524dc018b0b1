#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "demi/optim/optimizer.h"
#include "demi/optim/parameters.h"
#include "demi/optim/rule.h"
#include "demi/optim/state_share.h"
#include "demi/step/backend.h"
#include "demi/step/member_source.h"
#include "demi/step/ownership.h"
#include "demi/step/pending_step.h"
#include "demi/step/state_watch.h"

namespace demi::optim {

inline constexpr auto kOptimizer = "optim.Optimizer";

/// Checks each parameter, and that no two are the same or share memory. Returns them as a set.
std::unordered_set<const at::TensorImpl*> check_parameters(const std::vector<at::Tensor>& all);

/// A parameter as the tables were built for it.
struct TrackedParameter {
  const at::TensorImpl* parameter;
  const torch::optim::OptimizerParamState* state;  // null: it has had no gradient yet
  StateWatch::Range tensors = {};                  // of that state
  bool held = true;                                // false: another process keeps its state
};

/// The options of the first group, for an optimizer whose groups name their rules. Throws
/// UsageError if it has none.
std::unique_ptr<OptimizerOptions> first_options(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

struct OptimizerState::Impl final : MemberSource {
  Impl(const Rule* rule_of_all, StepOptions options, const Backend& backend)
      : common_rule(rule_of_all), pending(new PendingStep(options, backend, *this)) {}

  const Groups& groups() override;
  bool is_unchanged() const override;
  std::vector<GroupedMember> members(const Groups& groups) override;
  bool has_gradients() const override;
  bool holds(size_t parameter) const { return !share || share->holds(parameter); }
  Moments moments() const { return pending->options().moments; }

  /// The rule of a group with these options.
  const Rule& rule_of(const OptimizerOptions& options) const {
    return common_rule ? *common_rule : optim::rule_of(options);
  }
  /// The rule of each group, or of each parameter.
  Rules rules(const std::vector<torch::optim::OptimizerParamGroup>& groups,
              bool of_parameters = false) const;
  /// The options that group number `index` of the optimizer is to have. Throws UsageError for those
  /// of another optimizer, and for none if groups name their rules.
  std::unique_ptr<OptimizerOptions> options_of(const torch::optim::OptimizerParamGroup& group,
                                               const OptimizerOptions& defaults,
                                               size_t index) const;

  /// Takes ownership of the parameters' copies and gradients.
  void adopt();
  /// Throws UsageError for an optimizer that shares its state.
  void require_unshared(const char* what) const;
  /// Makes `to` the optimizer that it belongs to.
  void move_to(optim::Optimizer& to);

  optim::Optimizer* optimizer = nullptr;
  const Rule* common_rule;  // of all groups; null: the options of each group name its rule
  std::shared_ptr<PendingStep> pending;
  std::vector<std::unique_ptr<Ownership>> owned;
  std::vector<TrackedParameter> tracked;
  StateWatch watch;                    // of the states of those
  std::map<size_t, at::Tensor> rates;  // scheduled, by group: fp64, (steps), CPU
  std::shared_ptr<StateShare> share;   // null: this process keeps all
  std::optional<std::map<std::string, at::Tensor>> others;  // state of what others hold
  StepResult last;
  Groups step_groups;  // of this step; kept for its memory
};

}  // namespace demi::optim

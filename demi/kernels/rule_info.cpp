#include "demi/kernels/rule_info.h"

#include "demi/kernels/decision.h"

namespace demi::kernels {

RuleInfo info_of(UpdateRule rule) {
  return with_rule(rule, []<UpdateRule of>() {
    RuleInfo info{.states = RuleOf<of>::kStates, .has_trust = RuleOf<of>::kTrust};
    if (of == UpdateRule::muon) info.applied_by = UpdateRule::muon_apply;
    return info;
  });
}

namespace {

std::uint32_t flags_of(UpdateRule rule, const Group& group) {
  return with_rule(rule, [&]<UpdateRule of>() {
    return common_coefficients(group, {}).flags | RuleOf<of>::flags(group);
  });
}

/// Bit k: take(state k).
template <class Take>
std::uint32_t states_where(UpdateRule rule, Take take) {
  std::uint32_t taken = 0, bit = 1;
  for (const State& state : info_of(rule).states) {
    if (take(state)) taken |= bit;
    bit <<= 1;
  }
  return taken;
}

}  // namespace

std::uint32_t states_kept(UpdateRule rule, const Group& group) {
  const std::uint32_t flags = flags_of(rule, group);
  return states_where(
      rule, [&](const State& state) { return state.kept_if == 0 || (flags & state.kept_if) != 0; });
}

bool reads_gradient_again(UpdateRule rule, const Group& group) {
  const std::optional<UpdateRule> applied_by = info_of(rule).applied_by;
  return applied_by && with_rule(*applied_by, [&]<UpdateRule of>() {
           return reads_gradient<of>(flags_of(rule, group));
         });
}

float initial_of(UpdateRule rule, const State& state, const Group& group) {
  return with_rule(rule, [&]<UpdateRule of>() { return RuleOf<of>::initial(state, group); });
}

std::uint32_t states_coded(UpdateRule rule, const Group& group) {
  if (group.fp32_states) return 0;
  const std::uint32_t flags = flags_of(rule, group);
  return states_kept(rule, group) & states_where(rule, [&](const State& state) {
           return state.form == StateForm::array && !state.always_fp32 &&
                  (flags & state.fp32_if) == 0;
         });
}

}  // namespace demi::kernels

#include "demi/kernels/rule_info.h"

#include "demi/kernels/decision.h"

namespace demi::kernels {

RuleInfo info_of(UpdateRule rule) {
  return with_rule(rule, []<UpdateRule of>() {
    return RuleInfo{.states = RuleOf<of>::kStates, .has_trust = RuleOf<of>::kTrust};
  });
}

std::uint32_t states_kept(UpdateRule rule, const Group& group) {
  const std::uint32_t flags = with_rule(rule, [&]<UpdateRule of>() {
    return common_coefficients(group, {}).flags | RuleOf<of>::flags(group);
  });
  std::uint32_t kept = 0, bit = 1;
  for (const State& state : info_of(rule).states) {
    if (state.kept_if == 0 || (flags & state.kept_if) != 0) kept |= bit;
    bit <<= 1;
  }
  return kept;
}

}  // namespace demi::kernels

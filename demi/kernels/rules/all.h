#pragma once

#include <cstdint>
#include <utility>

#include "demi/kernels/rules/ema.h"
#include "demi/kernels/rules/rule.h"

// clang-format off
#define DEMI_RULE(name) DEMI_RULE_TEXT(demi/kernels/rules/name.h)  // NOLINT(bugprone-macro-parentheses)
// clang-format on
#include "demi/kernels/rules/list.h"

// Every rule, for whoever runs a table of any. Internal linkage, as formulas.h.
namespace demi::kernels {
namespace {

template <UpdateRule>
struct RuleOf;
template <>
struct RuleOf<UpdateRule::ema> : rules::EMA {};
template <>
struct RuleOf<UpdateRule::muon_apply> : rules::MuonApply {};
#define DEMI_RULE_ENTRY(name, Name) \
  template <>                       \
  struct RuleOf<UpdateRule::name> : rules::Name {};
#include "demi/kernels/rules/entries.h"

/// call.template operator()<rule>(), with the rule as a constant.
template <class Call>
inline auto with_rule(UpdateRule rule, Call call) {
  switch (rule) {
#define DEMI_RULE_ENTRY(name, Name) \
  case UpdateRule::name:            \
    return call.template operator()<UpdateRule::name>();
#include "demi/kernels/rules/entries.h"
    case UpdateRule::muon_apply:
      return call.template operator()<UpdateRule::muon_apply>();
    case UpdateRule::ema:
      break;
  }
  return call.template operator()<UpdateRule::ema>();
}

template <class Rule, std::size_t i>
inline constexpr std::uint32_t kKeptIf = Rule::kStates[i].kept_if;
template <class Rule, std::size_t i>
inline constexpr bool kIsArray = Rule::kStates[i].form == StateForm::array;

/// Arrays that a rule may keep.
template <class Rule>
constexpr int count_arrays() {
  int count = 0;
  for (const State& state : Rule::kStates) count += state.form == StateForm::array ? 1 : 0;
  return count;
}
template <UpdateRule rule>
inline constexpr int kArrays = count_arrays<RuleOf<rule>>();

/// Arrays first, then at most one scalar: state k of StateForm::array is moment[k].
template <class Rule>
constexpr bool states_are_in_order() {
  const int arrays = count_arrays<Rule>();
  for (int k = 0; k < static_cast<int>(Rule::kStates.size()); ++k)
    if ((Rule::kStates[k].form == StateForm::array) != (k < arrays)) return false;
  return arrays <= 3 && static_cast<int>(Rule::kStates.size()) <= arrays + 1;
}

template <class Rule, std::size_t... i>
DEMI_HOST_DEVICE std::uint32_t arrays_kept([[maybe_unused]] std::uint32_t flags,
                                           std::index_sequence<i...>) {
  return (0u | ... |
          (kIsArray<Rule, i> && (kKeptIf<Rule, i> == 0 || (flags & kKeptIf<Rule, i>) != 0) ? 1u << i
                                                                                           : 0u));
}

/// The arrays of a tensor that the rule reads and writes with these flags: bit m is moment[m].
template <UpdateRule rule>
DEMI_HOST_DEVICE std::uint32_t arrays_kept(std::uint32_t flags) {
  using Rule = RuleOf<rule>;
  static_assert(states_are_in_order<Rule>(), "three arrays at most, then at most one scalar");
  return arrays_kept<Rule>(flags, std::make_index_sequence<Rule::kStates.size()>());
}

/// The arrays that the rule always keeps, of those that its update() touches.
template <UpdateRule rule>
constexpr std::uint32_t arrays_always_kept() {
  std::uint32_t kept = 0;
  for (int m = 0; m < kArrays<rule>; ++m)
    if (RuleOf<rule>::kStates[m].kept_if == 0) kept |= 1u << m;
  return kept & RuleOf<rule>::kTouched;
}
template <UpdateRule rule>
inline constexpr std::uint32_t kAlwaysKept = arrays_always_kept<rule>();

/// The flags with which it keeps more.
template <UpdateRule rule>
constexpr std::uint32_t flags_that_keep() {
  std::uint32_t flags = 0;
  for (const State& state : RuleOf<rule>::kStates) flags |= state.kept_if;
  return flags;
}
template <UpdateRule rule>
inline constexpr std::uint32_t kKeptByChoice = flags_that_keep<rule>();

/// Whether update() touches moment[m], and it is one of `arrays`, which arrays_kept() gave: known
/// to the compiler for those that are always kept.
template <UpdateRule rule>
DEMI_HOST_DEVICE bool is_kept(std::uint32_t arrays, int m) {
  if ((RuleOf<rule>::kTouched >> m & 1u) == 0) return false;
  return (kAlwaysKept<rule> >> m & 1u) != 0 || (arrays >> m & 1u) != 0;
}

/// Whether update() reads the gradient with these flags: known to the compiler for a rule that
/// always does.
template <UpdateRule rule>
DEMI_HOST_DEVICE bool reads_gradient(std::uint32_t flags) {
  return RuleOf<rule>::kGradientIf == 0 || (flags & RuleOf<rule>::kGradientIf) != 0;
}

/// Whether update() moves the parameter.
template <UpdateRule rule>
inline constexpr bool kMovesParameter =
    !RuleOf<rule>::kTrust && RuleOf<rule>::kDirection != Direction::written;

/// Pass 2 of any rule. A rule with a trust ratio moves no parameter in it.
template <UpdateRule rule, class V>
DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
  RuleOf<rule>::update(e, c);
}

/// Pass 3 of a rule with a trust ratio; negative_rate is -lr × trust ratio.
template <UpdateRule rule, class V>
DEMI_HOST_DEVICE void apply_trust(Elements<V>& e, const Coefficients& c) {
  e.parameter = e.parameter + V(c.negative_rate) * RuleOf<rule>::direction(e, c);
}

}  // namespace
}  // namespace demi::kernels

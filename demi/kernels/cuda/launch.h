#pragma once

#include <cstdint>
#include <type_traits>

#include "demi/kernels/cuda/coded_bodies.h"

// Which bodies a pass launches, for any launcher: the device's (plugin.cu) or the host's
// (emulation.h). A launcher offers run<Body>(thread_blocks, table) and counts.
namespace demi::kernels::cuda {
namespace {

template <class Body, class Launcher>
void launch_blocks(Launcher& launcher, const StepTable& table) {
  const std::int64_t blocks = table.range.end_block - table.range.first_block;
  if (blocks > 0) launcher.template run<Body>(blocks, table);
}

template <class Launcher>
void launch_measure(Launcher& launcher, const StepTable& table) {
  launcher.template run<Measure>(Measure::thread_blocks(table), table);
}

template <class Launcher>
void launch_decide(Launcher& launcher, const StepTable& table) {
  launcher.template run<Decide>(1, table);
}

template <class Launcher>
void launch_update(Launcher& launcher, const StepTable& table) {
  with_rule(table.range.rule, [&]<UpdateRule rule>() {
    if constexpr (rule != UpdateRule::ema)
      if (table.range.coded)
        return table.range.grouped ? launch_blocks<UpdateCoded<rule>>(launcher, table)
                                   : launch_blocks<UpdateEach<rule>>(launcher, table);
    launch_blocks<Update<rule>>(launcher, table);
  });
}

template <class Launcher>
void launch_apply_trust(Launcher& launcher, const StepTable& table) {
  with_rule(table.range.rule, [&]<UpdateRule rule>() {
    if constexpr (RuleOf<rule>::kTrust) {
      if (table.range.coded) return launch_blocks<ApplyTrustCoded<rule>>(launcher, table);
      launch_blocks<ApplyTrust<rule>>(launcher, table);
    }
  });
}

/// A whole step of a table with one rule: three launches, four with a trust ratio (LAMB), whatever
/// the number of tensors. Four of a rule of matrices, whose direction is taken as it is.
template <class Launcher>
void launch_step(Launcher& launcher, const StepTable& table) {
  launch_measure(launcher, table);
  launch_decide(launcher, table);
  launch_update(launcher, table);
  launch_apply_trust(launcher, table);
  if (table.range.rule != UpdateRule::muon) return;
  StepTable third = table;
  third.range.rule = UpdateRule::muon_apply;
  launch_update(launcher, third);
}

/// The block of thread block b of a launch.
template <class Body>
DEMI_HOST_DEVICE std::int64_t block_of(const StepTable& table, std::int64_t b) {
  if constexpr (requires { Body::kAllBlocks; }) return b;
  return table.range.first_block + b;
}

/// What a thread of the body keeps from phase to phase, besides Shared.
struct CarriesNothing {};
template <class Body>
consteval auto carry_of() {
  if constexpr (requires { typename Body::Carry; })
    return std::type_identity<typename Body::Carry>{};
  else
    return std::type_identity<CarriesNothing>{};
}
template <class Body>
using CarryOf = typename decltype(carry_of<Body>())::type;

template <class Body>
DEMI_HOST_DEVICE void run_phase(int p, const StepTable& table, std::int64_t b, int t,
                                typename Body::Shared& shared,
                                [[maybe_unused]] CarryOf<Body>& carry) {
  if constexpr (requires { typename Body::Carry; })
    Body::phase(p, table, b, t, shared, carry);
  else
    Body::phase(p, table, b, t, shared);
}

/// Whether a thread block has nothing to do from phase p of the body on.
template <class Body>
DEMI_HOST_DEVICE bool ends(int p, const typename Body::Shared& shared) {
  if constexpr (requires { Body::ends(p, shared); }) return Body::ends(p, shared);
  return false;
}

}  // namespace
}  // namespace demi::kernels::cuda

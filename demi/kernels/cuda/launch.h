#pragma once

#include "demi/kernels/cuda/bodies.h"

// Which bodies a pass launches, for any launcher: the device's (plugin.cu) or the host's
// (emulation.h). A launcher offers run<Body>(thread_blocks, table) and counts.
namespace demi::kernels::cuda {
namespace {

template <class Body, class Launcher>
void launch_blocks(Launcher& launcher, const StepTable& table) {
  if (table.block_count > 0) launcher.template run<Body>(table.block_count, table);
}

template <class Launcher>
void launch_measure(Launcher& launcher, const StepTable& table) {
  launch_blocks<Measure>(launcher, table);
}

template <class Launcher>
void launch_update(Launcher& launcher, const StepTable& table) {
  switch (table.rule) {
    case Rule::sgd:
      return launch_blocks<Update<Rule::sgd>>(launcher, table);
    case Rule::adam:
      return launch_blocks<Update<Rule::adam>>(launcher, table);
    case Rule::adamw:
      return launch_blocks<Update<Rule::adamw>>(launcher, table);
    case Rule::lamb:
      return launch_blocks<Update<Rule::lamb>>(launcher, table);
    case Rule::lion:
      return launch_blocks<Update<Rule::lion>>(launcher, table);
    case Rule::ema:
      return launch_blocks<Update<Rule::ema>>(launcher, table);
  }
}

template <class Launcher>
void launch_apply_trust(Launcher& launcher, const StepTable& table) {
  if (table.rule == Rule::lamb) launch_blocks<ApplyTrust>(launcher, table);
}

/// A whole step: three launches, four for LAMB, whatever the number of tensors.
template <class Launcher>
void launch_step(Launcher& launcher, const StepTable& table) {
  launch_measure(launcher, table);
  launcher.template run<Finish<true, true>>(1, table);
  launch_update(launcher, table);
  launch_apply_trust(launcher, table);
}

}  // namespace
}  // namespace demi::kernels::cuda

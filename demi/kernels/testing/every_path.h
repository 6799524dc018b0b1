#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "demi/kernels/testing/emulation.h"
#include "demi/kernels/testing/step_case.h"

namespace demi::kernels::testing {

/// A case with odd lengths, of a rule that keeps states and weights in other forms than FP32.
inline CaseOptions coded_case(UpdateRule rule) {
  CaseOptions options;
  options.rule = rule;
  options.rounding_seed = 42;
  options.group.weight_decay = 0.01;
  options.group.momentum = 0.9;
  for (double& number : options.group.own) number = 0.75;
  // Centered, RMSprop keeps FP32: the root of a negative difference is NaN.
  if (rule == UpdateRule::rmsprop) options.group.own[1] = 0;
  options.lengths = {0, 1, 9, 511, 513, 2049, 16385};
  return options;
}

/// Steps on each path of this machine and on the emulated device have the reference's bits.
inline void expect_same_bits_on_every_path(const CaseOptions& options, int steps) {
  StepCase expected(options), emulated(options);
  std::deque<StepCase> paths;  // whose tables name parts of them: they must not move
  for ([[maybe_unused]] const CpuKernels* path : simd_paths()) paths.emplace_back(options);
  for (int s = 0; s < steps; ++s) {
    expected.step(*cpu_kernels(Path::reference));
    cuda::HostLauncher launcher;
    cuda::launch_step(launcher, emulated.table());
    ASSERT_TRUE(expected.written() == emulated.written()) << "device, step " << s;
    for (std::size_t p = 0; p < paths.size(); ++p) {
      paths[p].step(*simd_paths()[p], s);
      ASSERT_TRUE(expected.written() == paths[p].written()) << "path " << p << " step " << s;
    }
  }
}

}  // namespace demi::kernels::testing

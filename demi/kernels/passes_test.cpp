#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "demi/kernels/decide.h"
#include "demi/kernels/testing/special_values.h"
#include "demi/kernels/testing/step_case.h"

// Every path against the reference, bit by bit: the operations and their order are the same.
namespace demi::kernels {
namespace {

using testing::kInfinity;
using testing::kNaN;

using testing::CaseOptions;
using testing::StepCase;

std::vector<CaseOptions> cases() {
  std::vector<CaseOptions> all;
  const auto add = [&](UpdateRule rule, auto change) {
    CaseOptions options;
    options.rule = rule;
    options.group.weight_decay = 0.01;
    change(options.group);
    all.push_back(options);
  };
  const auto nothing = [](Group&) {};
  for (const UpdateRule rule : testing::all_rules()) {
    add(rule, nothing);
    add(rule, [](Group& g) {
      g.weight_decay = 0, g.momentum = 0.9, g.amsgrad = g.maximize = true;
      for (double& number : g.own) number = 0.75;
    });
  }
  add(UpdateRule::sgd, [](Group& g) { g.weight_decay = 0; });
  add(UpdateRule::sgd, [](Group& g) { g.momentum = 0.9; });
  add(UpdateRule::sgd, [](Group& g) { g.momentum = 0.9, g.nesterov = true; });
  add(UpdateRule::sgd, [](Group& g) { g.momentum = 0.9, g.dampening = 0.3, g.maximize = true; });
  add(UpdateRule::adam, [](Group& g) { g.amsgrad = true, g.beta1 = 0.3; });
  add(UpdateRule::adamw, [](Group& g) { g.amsgrad = true, g.maximize = true; });
  add(UpdateRule::lamb, [](Group& g) { g.weight_decay = 0, g.trust_limit = 0.5, g.epsilon = 0; });
  add(UpdateRule::ema, [](Group& g) { g.learning_rate = 0.001; });
  return all;
}

void expect_same_steps(const CaseOptions& options, const CpuKernels& kernels, int steps) {
  StepCase expected(options), seen(options);
  for (StepCase* one : {&expected, &seen}) one->plan().inputs().max_norm = 0.01f;
  for (int s = 0; s < steps; ++s) {
    expected.step(*cpu_kernels(Path::reference));
    seen.step(kernels);
    ASSERT_EQ(expected.written() == seen.written(), true)
        << name_of(kernels.path) << " rule " << static_cast<int>(options.rule) << " gradient "
        << static_cast<int>(options.gradient) << " offset " << options.offset << " step " << s;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(expected.plan().state().sum_of_squares),
              std::bit_cast<std::uint64_t>(seen.plan().state().sum_of_squares));
    EXPECT_EQ(expected.plan().state().greatest, seen.plan().state().greatest);
  }
}

TEST(Passes, EveryPathGivesTheBitsOfTheReference) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    for (CaseOptions options : cases()) {
      for (const Storage storage : {Storage::fp32, Storage::fp16, Storage::bf16}) {
        options.gradient = storage;
        options.copies[0] = storage == Storage::fp32 ? Storage::none : storage;
        options.copies[1] = storage == Storage::bf16 ? Storage::fp16 : Storage::none;
        options.offset = storage == Storage::fp16 ? 3 : storage == Storage::bf16 ? 1 : 0;
        expect_same_steps(options, *kernels, 2);
      }
    }
  }
}

TEST(Passes, AwkwardValuesGiveTheSameBits) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    for (CaseOptions options : cases()) {
      for (const Storage storage : {Storage::fp32, Storage::fp16, Storage::bf16}) {
        options.gradient = storage;
        options.awkward = true;
        options.offset = 5;
        options.scale = 1.0f;
        options.copies[0] = Storage::fp16;
        options.copies[1] = Storage::bf16;
        options.lengths = {1, 19, 300, 5000};
        expect_same_steps(options, *kernels, 1);
      }
    }
  }
}

TEST(Passes, HowTheWorkIsSplitChangesNoBit) {
  std::vector<const CpuKernels*> all = testing::simd_paths();
  all.push_back(cpu_kernels(Path::reference));
  for (const CpuKernels* kernels : all) {
    for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::lamb}) {
      CaseOptions options;
      options.rule = rule;
      options.lengths = {100, 40000, 3, 70000, 16384};
      StepCase whole(options), cut(options);
      for (StepCase* one : {&whole, &cut}) one->plan().inputs().max_norm = 0.01f;
      whole.step(*kernels);
      cut.step(*kernels, 1);
      EXPECT_EQ(whole.written() == cut.written(), true) << name_of(kernels->path);
      EXPECT_EQ(whole.plan().state().gradient_norm, cut.plan().state().gradient_norm);
      EXPECT_LT(whole.plan().state().clip_factor, 1.0f);
    }
  }
}

TEST(Passes, AnInfOrNaNAnywhereChangesNothingAtAll) {
  std::vector<const CpuKernels*> all = testing::simd_paths();
  all.push_back(cpu_kernels(Path::reference));
  for (const CpuKernels* kernels : all) {
    for (const float poison : {kInfinity, -kInfinity, kNaN}) {
      for (const Storage storage : {Storage::fp32, Storage::fp16, Storage::bf16}) {
        for (const std::int64_t place : {0, 17, 20000, 20002}) {
          CaseOptions options;
          options.rule = UpdateRule::lamb;
          options.gradient = storage;
          options.lengths = {5, 20003};
          StepCase one(options);
          one.step(*kernels);
          EXPECT_EQ(one.plan().state().skipped, 0.0f);
          const std::vector<unsigned char> before = one.written();
          one.set_gradient(1, place, poison);
          one.step(*kernels);
          EXPECT_EQ(one.written() == before, true) << name_of(kernels->path) << " at " << place;
          EXPECT_EQ(one.plan().state().found_inf, 1.0f);
          EXPECT_EQ(one.plan().state().skipped, 1.0f);
          EXPECT_EQ(one.plan().state().taken, 1);
          EXPECT_EQ(one.plan().state().skips, 1);
          EXPECT_EQ(one.step_count(1), 1);
        }
      }
    }
  }
}

TEST(Passes, GreatestMagnitudeAndFiniteValuesWhoseSquaresOverflow) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    CaseOptions options;
    options.lengths = {1000};
    options.gradient = Storage::bf16;
    options.scale = 1.0f;
    StepCase one(options);
    one.set_gradient(0, 999, -3e38f);
    one.step(*kernels);
    EXPECT_EQ(one.plan().state().found_inf, 0.0f);
    EXPECT_NEAR(one.plan().state().greatest / 3e38f, 1.0f, 0.01f);
    EXPECT_TRUE(std::isfinite(one.plan().state().sum_of_squares));
    EXPECT_NEAR(one.plan().state().gradient_norm / 3e38f, 1.0f, 0.01f);
  }
}

// The norm as FP80 (long double) sums it up, one after the other.
TEST(Passes, NormIsThatOfTheValues) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    CaseOptions options;
    options.gradient = Storage::fp32;
    options.scale = 1024.0f;
    StepCase one(options);
    long double squares = 0;
    for (const TensorEntry& tensor : one.plan().tensors()) {
      for (std::int64_t i = 0; i < tensor.length; ++i) {
        const long double x = static_cast<const float*>(tensor.gradient)[i];
        squares += x * x;
      }
    }
    one.step(*kernels);
    EXPECT_NEAR(one.plan().state().sum_of_squares / static_cast<double>(squares), 1.0, 1e-13);
    const auto norm = static_cast<float>(std::sqrt(squares) / 1024.0L);
    EXPECT_NEAR(one.plan().state().gradient_norm / norm, 1.0f, 1e-7f);
  }
}

TEST(Passes, ATensorWithoutGradientIsLeftAlone) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    CaseOptions options;
    options.lengths = {50, 50};
    StepCase one(options);
    one.plan().tensors()[0].gradient = nullptr;
    const std::vector<float> before(one.parameter(0), one.parameter(0) + 50);
    one.step(*kernels);
    EXPECT_EQ(std::vector<float>(one.parameter(0), one.parameter(0) + 50), before);
    EXPECT_EQ(one.step_count(0), 0);
    EXPECT_EQ(one.step_count(1), 1);
  }
}

TEST(Passes, FactorAndLimitOfATensor) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    CaseOptions options;
    options.rule = UpdateRule::sgd;
    options.group.learning_rate = 1.0;
    options.gradient = Storage::fp32;
    options.lengths = {40};
    options.scale = 2.0f;
    StepCase one(options);
    const float factor = 0.5f;
    one.plan().tensors()[0].factor = &factor;
    one.plan().tensors()[0].limit = 0.75f;
    one.set_gradient(0, 0, 100.0f);
    one.set_gradient(0, 1, -100.0f);
    one.set_gradient(0, 2, 2.0f);
    const std::vector<float> before(one.parameter(0), one.parameter(0) + 3);
    one.step(*kernels);
    EXPECT_EQ(one.parameter(0)[0], before[0] - 0.75f);
    EXPECT_EQ(one.parameter(0)[1], before[1] + 0.75f);
    EXPECT_EQ(one.parameter(0)[2], before[2] - 0.5f);
  }
}

}  // namespace
}  // namespace demi::kernels

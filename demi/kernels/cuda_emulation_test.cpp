#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "demi/kernels/testing/batch_norm_case.h"
#include "demi/kernels/testing/emulated_batch_norm.h"
#include "demi/kernels/testing/emulated_quantize.h"
#include "demi/kernels/testing/emulation.h"
#include "demi/kernels/testing/quantize_case.h"
#include "demi/kernels/testing/step_case.h"

// The CUDA kernels' source, compiled for the host, against the reference path; and their launches
// counted.
namespace demi::kernels {
namespace {

using testing::CaseOptions;
using testing::StepCase;

void expect_same_steps(const CaseOptions& options) {
  StepCase expected(options), seen(options);
  for (StepCase* one : {&expected, &seen}) one->plan().inputs().max_norm = 0.01f;
  for (int s = 0; s < 2; ++s) {
    expected.step(*cpu_kernels(Path::reference));
    cuda::HostLauncher launcher;
    cuda::launch_step(launcher, seen.table());
    ASSERT_EQ(expected.written() == seen.written(), true)
        << "rule " << static_cast<int>(options.rule) << " gradient "
        << static_cast<int>(options.gradient) << " offset " << options.offset << " step " << s;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(expected.plan().state().sum_of_squares),
              std::bit_cast<std::uint64_t>(seen.plan().state().sum_of_squares));
    EXPECT_EQ(expected.plan().state().greatest, seen.plan().state().greatest);
    const bool has_third = options.rule == UpdateRule::lamb || options.rule == UpdateRule::muon;
    EXPECT_EQ(launcher.launches, has_third ? 4 : 3);
  }
}

TEST(CudaSource, GivesTheBitsOfTheReference) {
  for (const UpdateRule rule : testing::all_rules()) {
    for (const Storage storage : {Storage::fp32, Storage::fp16, Storage::bf16}) {
      CaseOptions options;
      options.rule = rule;
      options.group.weight_decay = 0.01;
      options.group.momentum = 0.9;
      options.group.amsgrad = storage == Storage::fp16;
      options.gradient = storage;
      options.copies[0] = Storage::bf16;
      options.copies[1] = storage == Storage::fp32 ? Storage::fp16 : Storage::none;
      options.lengths = {0, 1, 7, 9, 255, 2049, 16385, 33000};
      options.offset = storage == Storage::bf16 ? 0 : 3;
      expect_same_steps(options);
      options.awkward = true;
      options.scale = 1.0f;
      options.lengths = {1, 300, 5000};
      expect_same_steps(options);
    }
  }
}

TEST(CudaSource, NormalisesBatchesWithTheBitsOfTheReference) {
  std::vector<testing::NormShape> shapes = testing::channels_last_shapes();
  // More channels than a thread block has threads, and fewer that divide it.
  shapes.push_back({true, true, false, 2, 700, 9, 5, {}});
  shapes.push_back({true, true, true, 5, 64, 17, 16, {}, Storage::fp32});
  for (const testing::NormShape& shape : shapes) {
    testing::NormCase expected(shape), seen(shape);
    expected.run_all(*cpu_kernels(Path::reference));
    for (const auto pass : testing::NormCase::kPasses)
      cuda::run_batch_norm(seen.described(pass), pass);
    EXPECT_TRUE(seen.wrote_as(expected)) << shape.channels << ' ' << shape.pool.any();
  }
}

// Fewer rows of sums than lanes, and more; fewer channels than a thread block has, and more.
TEST(CudaSource, JoinsSumsOfABatchAsInFp64) {
  for (const auto& [images, channels, size] :
       {std::array{1, 3, 5}, std::array{20, 17, 30}, std::array{9, 70, 33}}) {
    const testing::NormShape shape{true, true, false, images,       channels,
                                   size, size, {},    Storage::fp32};
    testing::NormCase one(shape);
    one.run_all(*cpu_kernels(Path::reference));
    testing::ChannelCase of(channels), before = of;
    BatchNorm norm = one.described();
    norm.sums = one.statistics.data();
    cuda::run_join<cuda::JoinStatistics>(norm, of.statistics());
    norm.sums = one.gradient_sums.data();
    cuda::run_join<cuda::JoinGradients>(norm, of.gradients());
    const std::int64_t count = shape.input_size() / channels;
    for (int k = 0; k < channels; ++k) {
      const auto c = static_cast<std::size_t>(k), width = static_cast<std::size_t>(channels);
      double mean = 0, squares = 0, gradient = 0, product = 0;
      for (std::int64_t i = k; i < shape.input_size(); i += channels) mean += one.x[i];
      mean /= static_cast<double>(count);
      for (std::int64_t i = k; i < shape.input_size(); i += channels) {
        squares += std::pow(one.x[i] - mean, 2);
        const double g = one.y[i] > 0 ? one.dy[i] : 0.0;
        gradient += g;
        product += g * (one.x[i] - one.mean[c]);
      }
      const auto n = static_cast<double>(count);
      const double inverse = 1 / std::sqrt(squares / n + 1e-5);
      EXPECT_NEAR(of.channels[c], mean, 1e-6 * mean);
      EXPECT_NEAR(of.channels[width + c], inverse, 1e-6 * inverse);
      EXPECT_NEAR(of.channels[2 * width + c], inverse * of.weight[c], 1e-6);
      EXPECT_EQ(of.channels[3 * width + c], of.bias[c]);
      EXPECT_NEAR(of.running_mean[c], 0.9 * before.running_mean[c] + 0.1 * mean, 1e-6);
      EXPECT_NEAR(of.running_var[c], 0.9 * before.running_var[c] + 0.1 * squares / (n - 1), 3e-6);
      EXPECT_NEAR(of.of_bias[c], gradient, 1e-5 * std::sqrt(n));
      EXPECT_NEAR(of.of_weight[c], product * inverse, 1e-5 * std::sqrt(n));
      EXPECT_NEAR(of.corrections[c], gradient / n, 1e-5);
      EXPECT_NEAR(of.corrections[width + c], product / n * inverse * inverse, 1e-5);
    }
    // Of the running statistics alone, which stay.
    before = of;
    norm.sums = nullptr;
    cuda::run_join<cuda::JoinStatistics>(norm, of.statistics());
    EXPECT_EQ(of.running_mean, before.running_mean);
    EXPECT_EQ(of.running_var, before.running_var);
    EXPECT_EQ(of.channels[0], of.running_mean[0]);
    EXPECT_NEAR(of.channels[static_cast<std::size_t>(channels)],
                1 / std::sqrt(of.running_var[0] + 1e-5), 1e-6);
  }
}

TEST(CudaSource, LaunchesDoNotGrowWithTheNumberOfTensors) {
  for (const std::size_t tensors : {1u, 40u, 161u}) {
    CaseOptions options;
    options.lengths.assign(tensors, 33);
    for (const UpdateRule rule : {UpdateRule::sgd, UpdateRule::adamw, UpdateRule::lamb}) {
      options.rule = rule;
      StepCase one(options);
      cuda::HostLauncher launcher;
      cuda::launch_step(launcher, one.table());
      EXPECT_EQ(launcher.launches, rule == UpdateRule::lamb ? 4 : 3);
      EXPECT_EQ(one.step_count(tensors - 1), 1);
    }
  }
}

TEST(CudaSource, ASkippedStepChangesNothing) {
  CaseOptions options;
  options.rule = UpdateRule::lamb;
  options.lengths = {5, 20003};
  StepCase one(options);
  one.set_gradient(1, 20002, -INFINITY);
  const std::vector<unsigned char> before = one.written();
  cuda::HostLauncher launcher;
  cuda::launch_step(launcher, one.table());
  EXPECT_EQ(one.written() == before, true);
  EXPECT_EQ(one.plan().state().skips, 1);
  EXPECT_EQ(one.plan().state().taken, 0);
}

TEST(CudaSource, GradientsWithoutAScaleStandBesideScaledOnes) {
  CaseOptions options;
  options.rule = UpdateRule::sgd;
  options.scale = 8.0f;
  options.lengths = {5000, 300, 20000};
  StepCase expected(options), seen(options);
  for (StepCase* one : {&expected, &seen}) one->plan().tensors()[2].unscaled = true;
  expected.step(*cpu_kernels(Path::reference));
  cuda::HostLauncher launcher;
  cuda::launch_step(launcher, seen.table());
  EXPECT_EQ(expected.written() == seen.written(), true);
  EXPECT_EQ(expected.plan().state().gradient_norm, seen.plan().state().gradient_norm);
  EXPECT_EQ(expected.plan().state().greatest, seen.plan().state().greatest);
}

TEST(CudaSource, TheNextLaunchCountsThreadBlocksFromZero) {
  CaseOptions options;
  options.lengths = {3 * kBlock};
  StepCase one(options);
  cuda::HostLauncher launcher;
  for (int step = 0; step < 3; ++step) {
    cuda::launch_step(launcher, one.table());
    EXPECT_EQ(one.plan().state().arrived, 0u);
  }
  EXPECT_EQ(one.step_count(0), 3);
}

TEST(CudaSource, WithoutTensorsOnlyTheSumsAndTheDecisionAreLaunched) {
  CaseOptions options;
  options.lengths = {};
  StepCase one(options);
  one.plan().state().gradient_norm = 5.0f;
  cuda::HostLauncher launcher;
  cuda::launch_step(launcher, one.table());
  EXPECT_EQ(launcher.launches, 2);
  EXPECT_EQ(one.plan().state().taken, 1);
  EXPECT_EQ(one.plan().state().gradient_norm, 0.0f);
}

// The partial sums are read once, by the pass that made them: else every thread block of a long
// tensor reads all of that tensor's.
TEST(CudaSource, TheTrustRatioIsDecidedBeforeItsPass) {
  CaseOptions options;
  options.rule = UpdateRule::lamb;
  options.lengths = {300 * kBlock + 5, 7};
  StepCase expected(options), seen(options);
  expected.step(*cpu_kernels(Path::reference));
  const StepTable table = seen.table();
  cuda::HostLauncher launcher;
  cuda::launch_measure(launcher, table);
  cuda::launch_decide(launcher, table);
  cuda::launch_update(launcher, table);
  for (std::int64_t b = 0; b < table.block_count; ++b)
    table.trust[b] = {std::nan(""), std::nan("")};
  for (std::int32_t t = 0; t < table.tensor_count; ++t)
    EXPECT_EQ(table.coefficients[t].arrived, 0u);
  cuda::launch_apply_trust(launcher, table);
  EXPECT_EQ(expected.written() == seen.written(), true);
}

TEST(CudaSource, QuantizesAsTheReferenceDoes) {
  for (const NarrowFormat format : testing::kNarrowFormats)
    for (const Scaling scaling : testing::kScalings)
      for (const bool down : {false, true})
        for (const Storage storage : {Storage::fp32, Storage::bf16}) {
          const int k = static_cast<int>(scaling);
          if (is_nv(scaling) && format != NarrowFormat::e2m1) continue;
          testing::QuantizeShape shape{format, scaling, down, 140, 131, storage};
          for (const int special : {0, 1}) {
            shape.by_chance = !shape.by_chance;
            testing::QuantizeCase expected(shape), seen(shape);
            for (testing::QuantizeCase* one : {&expected, &seen})
              if (special) one->from.set(33 * 131 + 40, INFINITY);
            expected.run(*cpu_kernels(Path::reference));
            cuda::run_quantize(seen.described());
            cuda::run_dequantize(seen.described());
            EXPECT_EQ(expected.codes, seen.codes) << static_cast<int>(format) << k << down;
            EXPECT_EQ(expected.scales, seen.scales) << static_cast<int>(format) << k << down;
            EXPECT_EQ(std::bit_cast<std::uint32_t>(expected.tensor_scale),
                      std::bit_cast<std::uint32_t>(seen.tensor_scale));
            EXPECT_TRUE(special || expected.to == seen.to);
            EXPECT_TRUE(seen.has_room_behind());
          }
        }
}

}  // namespace
}  // namespace demi::kernels

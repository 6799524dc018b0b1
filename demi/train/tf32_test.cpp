#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "demi/backends/backends.h"
#include "demi/core/error.h"
#include "demi/train/evaluate.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

// Everything that LibTorch tells of FP32's precision, a getter that throws included.
std::vector<std::string> settings_now() {
  at::Context& context = at::globalContext();
  std::vector<std::string> all;
  for (const auto backend :
       {Float32Backend::GENERIC, Float32Backend::CUDA, Float32Backend::MKLDNN}) {
    for (const auto op : {Float32Op::ALL, Float32Op::CONV, Float32Op::RNN, Float32Op::MATMUL}) {
      if (backend == Float32Backend::GENERIC && op != Float32Op::ALL) continue;
      all.push_back(at::precision2str(context.float32Precision(backend, op)));
    }
  }
  const std::vector<std::function<int()>> older{
      [&] { return static_cast<int>(context.float32MatmulPrecision()); },
      [&] { return static_cast<int>(context.allowTF32CuBLAS()); },
      [&] { return static_cast<int>(context.allowTF32CuDNN()); }};
  for (const auto& getter : older) {
    try {
      all.push_back(std::to_string(getter()));
    } catch (const c10::Error&) {
      all.push_back("throws");
    }
  }
  return all;
}

struct UserSetting {
  const char* name;
  std::function<void(at::Context&)> set;
};

const std::vector<UserSetting>& user_settings() {
  static const std::vector<UserSetting> all{
      {"nothing", [](at::Context&) {}},
      {"highest", [](at::Context& c) { c.setFloat32MatmulPrecision("highest"); }},
      {"high", [](at::Context& c) { c.setFloat32MatmulPrecision("high"); }},
      {"medium", [](at::Context& c) { c.setFloat32MatmulPrecision("medium"); }},
      {"older, products", [](at::Context& c) { c.setAllowTF32CuBLAS(true); }},
      {"older, no convolutions", [](at::Context& c) { c.setAllowTF32CuDNN(false); }},
      {"newer, products",
       [](at::Context& c) {
         c.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, Float32Precision::TF32);
       }},
      {"newer, no convolutions",
       [](at::Context& c) {
         c.setFloat32Precision(Float32Backend::CUDA, Float32Op::CONV, Float32Precision::IEEE);
       }},
      {"newer, all", [](at::Context& c) {
         c.setFloat32Precision(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::TF32);
       }}};
  return all;
}

// Calls `look` in an evaluation in tf32 or fp32.
void while_evaluating(bool allow, const std::function<void()>& look) {
  const torch::nn::Identity identity;
  const Network looking{.module = identity.ptr(), .forward = [&](const data::Batch& batch) {
                          look();
                          return batch.input;
                        }};
  evaluate(looking, testing::Rows(torch::ones({1, 2}), torch::zeros({1}, torch::kLong), 1),
           {.precision = parse_precision(allow ? "tf32" : "fp32")});
}

class Tf32 : public ::testing::Test {
 protected:
  // Resets the settings to LibTorch's own, but for convolutions, which then are allowed explicitly.
  void reset() {
    at::Context& context = at::globalContext();
    context.setFloat32Precision(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::NONE);
    context.setFloat32MatmulPrecision("highest");
    context.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, Float32Precision::NONE);
    context.setFloat32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL, Float32Precision::NONE);
    context.setAllowTF32CuDNN(true);
  }
  void SetUp() override { reset(); }
  void TearDown() override { reset(); }
};

TEST_F(Tf32, TheUsersSettingIsGivenBackAndMeanwhileItIsTheRuns) {
  for (const bool allow : {false, true}) {
    for (const UserSetting& user : user_settings()) {
      reset();
      user.set(at::globalContext());
      const auto before = settings_now();
      int looks = 0;
      while_evaluating(allow, [&] {
        ++looks;
        for (const auto op : {Float32Op::CONV, Float32Op::RNN, Float32Op::MATMUL}) {
          const at::Context& c = at::globalContext();
          EXPECT_EQ(c.float32Precision(Float32Backend::CUDA, op),
                    allow ? Float32Precision::TF32 : Float32Precision::IEEE)
              << user.name;
          EXPECT_EQ(c.float32Precision(Float32Backend::MKLDNN, op), Float32Precision::IEEE)
              << user.name << ": FP32 on a CPU is FP32";
        }
        EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), allow) << "the older getters do not throw";
        EXPECT_EQ(at::globalContext().allowTF32CuDNN(), allow);
      });
      EXPECT_EQ(looks, 1);
      EXPECT_EQ(settings_now(), before) << user.name << (allow ? ", tf32" : ", fp32");
    }
  }
}

TEST_F(Tf32, WhatFollowedASettingAboveItStillDoes) {
  at::Context& context = at::globalContext();
  while_evaluating(true, [] {});
  context.setFloat32Precision(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::TF32);
  EXPECT_EQ(context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL),
            Float32Precision::TF32);
  EXPECT_EQ(context.float32Precision(Float32Backend::MKLDNN, Float32Op::CONV),
            Float32Precision::TF32);
}

// The caller's settings override those of the precision.
TEST_F(Tf32, WhatTheCallerGivesCounts) {
  const torch::nn::Identity identity;
  Backends seen;
  const Network looking{.module = identity.ptr(), .forward = [&](const data::Batch& batch) {
                          seen = Backends::current();
                          return batch.input;
                        }};
  const testing::Rows rows(torch::ones({1, 2}), torch::zeros({1}, torch::kLong), 1);
  const Backends before = Backends::current();
  for (const char* precision : {"fp32", "tf32"}) {
    evaluate(looking, rows,
             {.precision = parse_precision(precision),
              .backends = {.cudnn_allow_tf32 = true, .cudnn_benchmark = true}});
    EXPECT_EQ(seen.cudnn_allow_tf32, true) << precision;
    EXPECT_EQ(seen.cuda_matmul_allow_tf32, precision == std::string("tf32"));
    EXPECT_EQ(seen.cudnn_benchmark, true);
    EXPECT_EQ(Backends::current(), before);
  }
}

TEST_F(Tf32, AFitAndItsValidationHaveTheCallersSettings) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2));
  std::vector<Backends> seen;
  TrainerOptions options;
  options.backends = {.cudnn_benchmark = true, .threads = at::get_num_threads() + 1};
  const Backends given = options.backends, before = Backends::current();
  const Network looking{.module = model.ptr(), .forward = [&](const data::Batch& batch) {
                          seen.push_back(Backends::current());
                          return model->forward(batch.input);
                        }};
  const testing::Rows rows(torch::ones({1, 2}), torch::zeros({1}, torch::kLong), 1);
  Trainer(looking, options).fit(rows, &rows);
  ASSERT_EQ(seen.size(), 2U) << "a step and a validation";
  for (const Backends& one : seen) {
    EXPECT_EQ(one.cudnn_benchmark, true);
    EXPECT_EQ(one.threads, given.threads);
    EXPECT_EQ(one.cudnn_allow_tf32, false) << "fp32";
  }
  EXPECT_EQ(Backends::current(), before);
  options.backends.threads = 0;
  EXPECT_THROW(Trainer(looking, options), UsageError);
}

// A fit of a network with products and convolutions, ended by its data.
TEST_F(Tf32, ATrainingThatEndsInAnErrorGivesItBackToo) {
  at::globalContext().setFloat32MatmulPrecision("medium");
  at::globalContext().setFloat32Precision(Float32Backend::CUDA, Float32Op::CONV,
                                          Float32Precision::IEEE);
  const auto before = settings_now();
  torch::nn::Sequential model(torch::nn::Conv2d(1, 2, 3), torch::nn::Flatten(),
                              torch::nn::Linear(8, 2));
  const testing::Broken broken(
      testing::Rows(torch::ones({8, 1, 4, 4}), torch::zeros({8}, torch::kLong), 4));
  EXPECT_THROW(Trainer(model).fit(broken), std::runtime_error);
  EXPECT_EQ(settings_now(), before);
}

}  // namespace
}  // namespace demi::train

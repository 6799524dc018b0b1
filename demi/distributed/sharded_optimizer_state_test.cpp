#include "demi/distributed/sharded_optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "demi/checkpoint/training_state.h"
#include "demi/core/error.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/ema.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/profile/memory.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/schedule/lr_scheduler.h"
#include "demi/weights/weights.h"

namespace demi::distributed {
namespace {

namespace fs = std::filesystem;

using demi::testing::on_ranks;
using optim::testing::Kind;
using optim::testing::kKinds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Small parts: every parameter is cut, and several lie in one piece.
constexpr ShardOptions kSmallPieces{.bucket_bytes = 100};

/// Parameters of every kind that an optimizer accepts, and gradients that are functions of the step
/// alone: as all ranks have them after DistributedDataParallel.
struct ShardedCase {
  std::vector<at::Tensor> parameters;

  explicit ShardedCase(at::ScalarType dtype) {
    using optim::testing::parameter;
    parameters = {parameter({7, 5}, dtype, 1),       parameter({3}, dtype, 2),
                  parameter({2, 3, 4, 2}, dtype, 3), parameter({1}, at::kDouble, 4),
                  parameter({0}, dtype, 5),          parameter({40}, dtype, 6),
                  parameter({6, 6}, dtype, 7),       parameter({9}, dtype, 8)};
    const at::NoGradGuard no_grad;
    parameters[2] =
        parameters[2].detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    parameters[6] = parameters[6].detach().slice(1, 0, 6, 2).requires_grad_();  // with gaps
  }

  /// `narrow`: gradients of fp32 parameters are of 16 bits. The last parameter has one in odd
  /// steps.
  void set_gradients(int step, at::ScalarType narrow, double scale) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& parameter = parameters[i];
      const bool is_double = parameter.scalar_type() == at::kDouble;
      at::Tensor gradient = optim::testing::gradient(parameter, at::kDouble, step) * scale;
      if (i == 7 && step % 2 == 0) gradient.reset();
      if (gradient.defined()) gradient = gradient.to(is_double ? at::kDouble : narrow);
      parameter.mutable_grad() = gradient;
    }
  }
};

struct ShardedRun {
  std::vector<at::Tensor> parameters;
  std::map<std::string, at::Tensor> state;  // of rank 0, whole
  std::vector<double> norms, scales;
  std::vector<bool> skipped;
};

/// Six steps with scaler, clipping and a schedule; the third has an Inf. `group`: null without
/// sharing.
ShardedRun six_steps(const Kind& kind, at::ScalarType dtype, ProcessGroup* group,
                     optim::StepOptions step_options = {}) {
  ShardedCase it(dtype);
  if (step_options.moments != optim::Moments::fp32)
    it.parameters.push_back(optim::testing::parameter({70, 80}, dtype, 9));
  if (step_options.weight_mode != optim::WeightMode::master)  // which know no gaps
    for (at::Tensor& one : it.parameters) one = one.detach().contiguous().requires_grad_();
  const auto optimizer = kind.make(it.parameters, step_options);
  std::unique_ptr<ShardedOptimizerState> shards;
  if (group) shards = std::make_unique<ShardedOptimizerState>(*optimizer, *group, kSmallPieces);
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  scaler.scale(at::ones({}));
  ShardedRun run;
  for (int step = 0; step < 6; ++step) {
    it.set_gradients(step, at::kBFloat16, scaler.get_scale());
    if (step == 2) it.parameters[1].mutable_grad()[0] = std::numeric_limits<float>::infinity();
    if (step == 4)
      for (auto& parameters : optimizer->param_groups()) parameters.options().set_lr(0.03);
    scaler.unscale_(*optimizer);
    run.norms.push_back(optim::clip_grad_norm_(it.parameters, 2).item<double>());
    run.skipped.push_back(scaler.step(*optimizer).skipped());
    scaler.update();
    run.scales.push_back(scaler.get_scale());
    optimizer->zero_grad();
  }
  if (shards) shards->consolidate();
  if (!group || group->rank() == 0)
    for (const auto& [name, tensor] : optimizer->state_tensors()) run.state[name] = tensor.clone();
  for (const at::Tensor& parameter : it.parameters) run.parameters.push_back(parameter.detach());
  return run;
}

void expect_same_state(const std::map<std::string, at::Tensor>& a,
                       const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

class ShardedOver : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ShardedOptimizerState, ShardedOver, ::testing::Values(1, 2, 3, 4));

TEST_P(ShardedOver, StepsHaveTheBitsOfOneThatSharesNothing) {
  const int n = GetParam();
  for (const Kind& kind : kKinds) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      SCOPED_TRACE(std::string(kind.name) + " " + c10::toString(dtype));
      const ShardedRun alone = six_steps(kind, dtype, nullptr);
      std::vector<ShardedRun> runs(static_cast<std::size_t>(n));
      const auto errors = on_ranks(n, [&](ProcessGroup& group) {
        runs[static_cast<std::size_t>(group.rank())] = six_steps(kind, dtype, &group);
      });
      EXPECT_THAT(errors, Each(IsEmpty()));
      EXPECT_EQ(alone.skipped, (std::vector<bool>{false, false, true, false, false, false}));
      for (const ShardedRun& run : runs) {
        EXPECT_EQ(run.skipped, alone.skipped);
        EXPECT_EQ(run.scales, alone.scales);
        for (std::size_t step = 0; step < alone.norms.size(); ++step) {
          if (alone.skipped[step]) continue;  // NaN
          EXPECT_EQ(run.norms[step], alone.norms[step]);
        }
        ASSERT_EQ(run.parameters.size(), alone.parameters.size());
        for (std::size_t i = 0; i < alone.parameters.size(); ++i)
          EXPECT_TRUE(at::equal(run.parameters[i], alone.parameters[i])) << i;
      }
      expect_same_state(runs.front().state, alone.state);
    }
  }
}

TEST(ShardedOptimizerState, CodedMomentsHaveTheBitsOfOneThatSharesNothing) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const auto moments =
        kind.id == optim::testing::KindId::kLamb ? optim::Moments::bf16 : optim::Moments::int8;
    const optim::StepOptions coded{.moments = moments, .rounding_seed = 3};
    const ShardedRun alone = six_steps(kind, at::kFloat, nullptr, coded);
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      const ShardedRun run = six_steps(kind, at::kFloat, &group, coded);
      for (std::size_t i = 0; i < alone.parameters.size(); ++i)
        EXPECT_TRUE(at::equal(run.parameters[i], alone.parameters[i])) << i;
      if (group.rank() == 0) expect_same_state(run.state, alone.state);
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
}

TEST(ShardedOptimizerState, WeightModesHaveTheBitsOfOneThatSharesNothing) {
  using Mode = optim::WeightMode;
  for (const auto& [mode, dtype] : {std::pair{Mode::split, at::kBFloat16},
                                    {Mode::split24, at::kBFloat16},
                                    {Mode::stochastic, at::kBFloat16},
                                    {Mode::split, at::kHalf}}) {
    const Kind& kind = kKinds[2];  // Adam
    const optim::StepOptions lean{.weight_mode = mode, .rounding_seed = 3};
    const ShardedRun alone = six_steps(kind, dtype, nullptr, lean);
    const auto errors = on_ranks(2, [&, narrow = dtype](ProcessGroup& group) {
      const ShardedRun run = six_steps(kind, narrow, &group, lean);
      for (std::size_t i = 0; i < alone.parameters.size(); ++i)
        EXPECT_TRUE(at::equal(run.parameters[i], alone.parameters[i])) << i;
      if (group.rank() == 0) expect_same_state(run.state, alone.state);
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
}

// An average would be of masters on one rank and of their rounding on the others.
TEST(ShardedOptimizerState, AnAverageOfNarrowWeightsIsRefused) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      torch::nn::Linear model(4, 4);  // a weight and a bias, one for each rank
      model->to(dtype);
      optim::AdamW adamw(model->parameters(), optim::AdamWOptions(0.01));
      const ShardedOptimizerState shards(adamw, group);
      EMA ema(*model);
      for (const at::Tensor& p : model->parameters()) p.mutable_grad() = at::ones_like(p);
      adamw.step();
      const std::string said = optim::testing::complaint([&] { ema.update(adamw.last_step()); });
      EXPECT_EQ(said.find("another process keeps") != std::string::npos, dtype == at::kBFloat16);
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
}

TEST_P(ShardedOver, EachRankKeepsItsShareAlone) {
  const int n = GetParam();
  const auto errors = on_ranks(n, [&](ProcessGroup& group) {
    ShardedCase it(at::kBFloat16);
    const auto optimizer = kKinds[2].make(it.parameters);  // Adam
    ShardedOptimizerState shards(*optimizer, group);
    it.set_gradients(1, at::kBFloat16, 1);
    optimizer->step();
    std::int64_t all = 0, kept = 0;
    for (const at::Tensor& parameter : it.parameters) all += parameter.numel();
    for (const auto& [name, tensor] : optimizer->state_tensors())
      if (name.ends_with(".exp_avg")) kept += tensor.numel();
    EXPECT_EQ(kept, shards.elements()[static_cast<std::size_t>(group.rank())]);
    EXPECT_EQ(std::accumulate(shards.elements().begin(), shards.elements().end(), std::int64_t{0}),
              all);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Rajbhandari et al. 2019, section 5.1: the state of K bytes a parameter becomes K / N. AdamW: 8
// bytes of moments, 4 of an fp32 master; 2 of a 16-bit gradient; the parameter, and the 16-bit copy
// of an fp32 one.
class ShardedMemory : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ShardedOptimizerState, ShardedMemory, ::testing::Values(2, 3, 4));

// c10d's threads release a piece a moment after its collective has ended: the bytes after which 20
// looks in a row find no fewer.
std::int64_t settled_bytes() {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int looks = 0; looks < 20; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::int64_t bytes = profile::memory_use(c10::kCPU).current_bytes;
    if (bytes < least) looks = 0;
    least = std::min(least, bytes);
  }
  return least;
}

double bytes_a_parameter(int ranks, at::ScalarType dtype) {
  constexpr int kTensors = 12;
  constexpr std::int64_t kElements = 1 << 16;
  profile::count_cpu_memory();
  std::int64_t before = 0, after = 0;
  const auto errors = on_ranks(ranks, [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) before = settled_bytes();
    group.barrier();
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < kTensors; ++i)
      parameters.push_back(at::full({kElements}, 0.5, dtype).requires_grad_());
    optim::AdamW optimizer(parameters, optim::AdamWOptions(1e-3));
    ShardedOptimizerState shards(optimizer, group);
    for (int step = 0; step < 2; ++step) {
      for (const at::Tensor& parameter : parameters) {
        weights::low_precision(parameter, at::kBFloat16);
        parameter.mutable_grad() = at::full({kElements}, 0.25, at::kBFloat16);
      }
      optimizer.step();
    }
    for (const at::Tensor& parameter : parameters) weights::low_precision(parameter, at::kBFloat16);
    group.barrier();
    if (group.rank() == 0) after = settled_bytes();
    group.barrier();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  return static_cast<double>(after - before) / ranks / (kTensors * kElements);
}

TEST_P(ShardedMemory, Of16BitParametersIs12ByNAnd4) {
  const double expected = 12.0 / GetParam() + 2 + 2;
  EXPECT_NEAR(bytes_a_parameter(GetParam(), at::kBFloat16), expected, 0.02 * expected);
}

TEST_P(ShardedMemory, OfFp32ParametersIs8ByNAnd8) {
  const bool keeps = weights::mode() == weights::Mode::keep;  // copies, from LibTorch 2.15 on
  const double expected = 8.0 / GetParam() + 4 + 2 + (keeps ? 2 : 0);
  EXPECT_NEAR(bytes_a_parameter(GetParam(), at::kFloat), expected, 0.02 * expected);
}

// The owner's step writes its copies, and what is received replaces those of the others.
TEST(ShardedOptimizerState, CopiesOfReceivedParametersFollow) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    ShardedCase it(at::kFloat);
    optim::AdamW optimizer(it.parameters, optim::AdamWOptions(0.1));
    ShardedOptimizerState shards(optimizer, group, kSmallPieces);
    for (int step = 1; step < 4; ++step) {
      for (const at::Tensor& parameter : it.parameters)
        weights::low_precision(parameter, at::kBFloat16);
      it.set_gradients(step, at::kBFloat16, 1);
      optimizer.step();
      for (const at::Tensor& parameter : it.parameters)
        EXPECT_TRUE(at::equal(weights::low_precision(parameter, at::kBFloat16),
                              parameter.to(at::kBFloat16)));
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Whole training: model, DistributedDataParallel, scaler, schedule.

struct ShardedNet : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(6, 10));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(10, 3));
  explicit ShardedNet(double phase) {
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters())
      p.copy_((at::arange(p.numel(), at::kDouble) * 0.7 + phase).sin().view(p.sizes()));
  }
  at::Tensor loss(int step, int shard) {
    const at::Tensor x = (at::arange(24, at::kDouble) * 1.1 + step * 5 + shard).sin().view({4, 6});
    return out->forward(torch::tanh(in->forward(x.to(in->weight.scalar_type()))))
        .to(at::kFloat)
        .square()
        .mean();
  }
};

/// Four shards of data whatever the number of ranks: each rank takes its part of them, one after
/// the other. The averages are exact to rounding, so a run is compared with those of the same sums.
class ShardedTraining {
 public:
  ShardedTraining(ProcessGroup& group, bool shares, at::ScalarType dtype = at::kFloat)
      : group_(group), model_(std::make_shared<ShardedNet>(group.rank())) {
    model_->to(dtype);
    parallel_ = std::make_unique<DistributedDataParallel>(*model_, group);
    optimizer_ = std::make_unique<optim::AdamW>(model_->parameters(), optim::AdamWOptions(0.05));
    if (shares) shards_ = std::make_unique<ShardedOptimizerState>(*optimizer_, group, kSmallPieces);
    schedule_ = std::make_unique<optim::lr::Scheduler>(*optimizer_, optim::lr::cosine(40));
  }

  // Every rank has the same batch, so the average is the same for any power of two of ranks.
  void step(int number, bool overflows_here = false) {
    {
      const auto no_sync = parallel_->no_sync();
      scaler_.scale(model_->loss(number, 0)).backward();
    }
    at::Tensor loss = model_->loss(number, 1);
    if (overflows_here) loss = loss * std::numeric_limits<float>::infinity();
    scaler_.scale(loss).backward();
    scaler_.unscale_(*optimizer_);
    optim::clip_grad_norm_(model_->parameters(), 0.5);
    skipped.push_back(scaler_.step(*optimizer_).skipped());
    scaler_.update();
    optimizer_->zero_grad();
    schedule_->step();
  }

  loop::Job objects() {
    return {.models = {model_.get()},
            .optimizers = {optimizer_.get()},
            .scaler = &scaler_,
            .schedules = {schedule_.get()},
            .random = false};
  }
  void save(const fs::path& folder, int number) {
    if (shards_) shards_->consolidate();
    if (group_.rank() == 0) checkpoint::save(folder, number, objects());
    if (shards_) shards_->release();
    group_.barrier();
  }
  void load(const fs::path& folder) { checkpoint::load(folder, objects()); }

  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : model_->parameters()) all.push_back(p.detach().clone());
    return all;
  }
  double scale() const { return scaler_.get_scale(); }

  std::vector<bool> skipped;

 private:
  ProcessGroup& group_;
  std::shared_ptr<ShardedNet> model_;
  std::unique_ptr<DistributedDataParallel> parallel_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<ShardedOptimizerState> shards_;
  std::unique_ptr<optim::lr::Scheduler> schedule_;
  GradScaler scaler_{GradScalerOptions{.init_scale = 64, .growth_interval = 3}};
};

void expect_same_weights(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(ShardedOptimizerState, AnOverflowOnOneRankSkipsOnAll) {
  constexpr int kRanks = 3;
  std::vector<std::vector<at::Tensor>> weights(2 * kRanks);
  for (const bool shares : {false, true}) {
    const auto errors = on_ranks(kRanks, [&](ProcessGroup& group) {
      ShardedTraining training(group, shares);
      for (int step = 0; step < 6; ++step) training.step(step, step == 3 && group.rank() == 1);
      EXPECT_EQ(training.skipped, (std::vector<bool>{false, false, false, true, false, false}));
      EXPECT_EQ(training.scale(), 64);  // 64 x 2 after three steps, halved by the skipped one
      weights[static_cast<std::size_t>(group.rank()) + (shares ? kRanks : 0)] = training.weights();
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
  for (const auto& each : weights) expect_same_weights(each, weights.front());
}

class ShardedFolder {
 public:
  ShardedFolder() : path(fs::temp_directory_path() / ("demi_shards_" + std::to_string(getpid()))) {
    fs::remove_all(path);
  }
  ~ShardedFolder() { fs::remove_all(path); }
  fs::path path;
};

// One part of a training: so many ranks, shared or not.
struct ShardedPart {
  int ranks;
  bool shares;
};

std::vector<at::Tensor> train_in_parts(const std::vector<ShardedPart>& parts,
                                       at::ScalarType dtype) {
  const ShardedFolder folder;
  std::vector<at::Tensor> weights;
  int begin = 0;
  for (const ShardedPart& part : parts) {
    const auto errors = on_ranks(part.ranks, [&](ProcessGroup& group) {
      ShardedTraining training(group, part.shares, dtype);
      if (begin > 0) training.load(folder.path);
      for (int step = begin; step < begin + 3; ++step) training.step(step);
      training.save(folder.path, begin + 3);
      if (group.rank() == 0) weights = training.weights();
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    begin += 3;
  }
  return weights;
}

// All ranks have the same batch, and 1, 2 and 4 are powers of two: the averages of all parts have
// the same bits.
TEST(ShardedOptimizerState, GoesOnWithAnotherNumberOfRanks) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto unbroken = train_in_parts({{1, false}, {1, false}, {1, false}, {1, false}}, dtype);
    expect_same_weights(train_in_parts({{4, true}, {2, true}, {1, true}, {2, true}}, dtype),
                        unbroken);
    expect_same_weights(train_in_parts({{2, true}, {1, false}, {4, true}, {2, false}}, dtype),
                        unbroken);
  }
}

TEST(ShardedOptimizerState, IsSavedAsTheStateOfOneThatSharesNothing) {
  const auto captured = [](int ranks, bool shares) {
    const ShardedFolder folder;
    const auto errors = on_ranks(ranks, [&](ProcessGroup& group) {
      ShardedTraining training(group, shares);
      for (int step = 0; step < 3; ++step) training.step(step);
      training.save(folder.path, 3);
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    return checkpoint::load(folder.path);
  };
  const checkpoint::Checkpoint one = captured(1, false), four = captured(4, true);
  expect_same_state(four.state, one.state);
  expect_same_state(four.model, one.model);
  EXPECT_EQ(four.numbers, one.numbers);
  EXPECT_EQ(four.text, one.text);
}

// What cannot be

TEST(ShardedOptimizerState, OptimizersThatDifferAreFoundAtTheStart) {
  const auto with = [](double rate, std::int64_t size, std::int64_t bucket) {
    return [=](ProcessGroup& group) {
      const bool odd = group.rank() == 1;
      const std::vector<at::Tensor> p{torch::zeros({odd ? size : 4}).requires_grad_()};
      optim::AdamW optimizer(p, optim::AdamWOptions(odd ? rate : 0.5));
      ShardedOptimizerState shards(optimizer, group, {.bucket_bytes = odd ? bucket : 64});
    };
  };
  EXPECT_THAT(on_ranks(2, with(0.5, 4, 64)), Each(IsEmpty()));
  EXPECT_THAT(on_ranks(2, with(0.25, 4, 64)),
              Each(AllOf(HasSubstr("lr 0.25 on rank 1"), HasSubstr("lr 0.5, as on rank 0"))));
  EXPECT_THAT(on_ranks(2, with(0.5, 5, 64)), Each(HasSubstr("fp32 (5), strides (1) on rank 1")));
  EXPECT_THAT(on_ranks(2, with(0.5, 4, 65)), Each(HasSubstr("bucket_bytes 65 on rank 1")));
  EXPECT_THAT(on_ranks(1,
                       [](ProcessGroup& group) {
                         ShardedCase it(at::kFloat);
                         const auto optimizer = kKinds[0].make(it.parameters);
                         ShardedOptimizerState shards(*optimizer, group, {.bucket_bytes = 0});
                       }),
              Each(HasSubstr("a bucket has no size")));
}

TEST(ShardedOptimizerState, ARankThatSkipsAloneIsFound) {
  const auto errors = on_ranks(3, [&](ProcessGroup& group) {
    ShardedCase it(at::kFloat);
    const auto optimizer = kKinds[2].make(it.parameters);
    ShardedOptimizerState shards(*optimizer, group);
    it.set_gradients(1, at::kFloat, 1);
    if (group.rank() == 2) it.parameters[0].mutable_grad().fill_(std::nan(""));
    optimizer->step();
  });
  EXPECT_THAT(errors, Each(HasSubstr("the ranks do not take the same step")));
  EXPECT_THAT(errors[2], HasSubstr("rank 2: skipped, with gradients of 8 parameters"));
}

TEST(ShardedOptimizerState, ARankWithOtherGradientsIsFound) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    ShardedCase it(at::kFloat);
    const auto optimizer = kKinds[2].make(it.parameters);
    ShardedOptimizerState shards(*optimizer, group);
    it.set_gradients(1, at::kFloat, 1);
    it.parameters[static_cast<std::size_t>(group.rank())].mutable_grad().reset();
    optimizer->step();
  });
  EXPECT_THAT(errors, Each(HasSubstr("with gradients of 7 parameters")));
}

TEST(ShardedOptimizerState, WhatAShareCannotDoIsRefused) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const auto model = std::make_shared<ShardedNet>(1);
    optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(0.1));
    const auto step = [&] {
      for (const at::Tensor& p : model->parameters()) p.mutable_grad() = at::ones_like(p);
      optimizer.step();
    };
    const loop::Job objects{.models = {model.get()}, .optimizers = {&optimizer}};
    {
      ShardedOptimizerState shards(optimizer, group);
      step();
      using optim::testing::complaint;
      EXPECT_THAT(complaint([&] { checkpoint::capture(objects); }),
                  HasSubstr("consolidate() on every rank first"));
      EXPECT_THAT(complaint([&] {
                    optimizer.add_param_group(
                        torch::optim::OptimizerParamGroup({torch::zeros({2}).requires_grad_()}));
                  }),
                  HasSubstr("several processes share the state"));
      EXPECT_THAT(complaint([&] {
                    std::ostringstream stream;
                    torch::save(optimizer, stream);
                  }),
                  HasSubstr("several processes share the state"));
      shards.consolidate();
      if (group.rank() == 0) checkpoint::capture(objects);
      step();  // the consolidated state is that of before
      EXPECT_THAT(complaint([&] { checkpoint::capture(objects); }),
                  HasSubstr("consolidate() on every rank first"));
      shards.consolidate();
      shards.release();
      EXPECT_THAT(complaint([&] { checkpoint::capture(objects); }),
                  HasSubstr("consolidate() on every rank first"));
      group.barrier();
      EXPECT_THAT(complaint([&] { const ShardedOptimizerState second(optimizer, group); }),
                  HasSubstr("several processes share the state"));
    }
    std::vector<torch::Tensor> before;
    for (const auto& group_of : optimizer.param_groups())
      for (const torch::Tensor& p : group_of.params()) before.push_back(p.detach().clone());
    EXPECT_THAT(optim::testing::complaint(step), HasSubstr("nobody to share it with"));
    for (const auto& group_of : optimizer.param_groups())
      for (std::size_t i = 0; i < group_of.params().size(); ++i)
        EXPECT_TRUE(group_of.params()[i].equal(before[i])) << "it has moved nothing";
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace demi::distributed

#include "demi/train/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "demi/train/evaluate.h"
#include "demi/train/names.h"
#include "demi/train/on_ranks_testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;

using demi::testing::on_ranks;
using distributed::ProcessGroup;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::shared_group;

constexpr int64_t kPlaneRows = 48, kPlaneFeatures = 6;

class RanksOfOneProcess : public testing::OnRanks {};

data::SyntheticRows rows_of_a_plane() {
  data::SyntheticRows rows = data::synthetic_rows(kPlaneRows, kPlaneFeatures, 1, 7);
  rows.input = rows.input.clamp(-2, 2);
  rows.target = rows.input.sum(1, true) / 4;
  return rows;
}

// The result of a run: its losses, its weights, and its counts.
struct PlaneOutcome {
  History history;
  at::Tensor weight;
};

struct PlaneJob {
  int64_t all_batch = 12;  // of all ranks together
  int64_t accumulate = 1, epochs = 1, max_steps = 0;
  fs::path checkpoints = {}, resume = {};
  std::function<bool()> should_stop = {};
  std::shared_ptr<Callback> callback = {};
};

constexpr double kRate = 0.1;

// Least squares by gradient descent, on one rank of `group`, or alone.
PlaneOutcome fit_plane(const PlaneJob& job, ProcessGroup* group) {
  torch::nn::Linear plane(torch::nn::LinearOptions(kPlaneFeatures, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    plane->weight.fill_(group ? 1.0 + group->rank() : 1.0);  // all become rank 0's
  }
  const int64_t ranks = group ? group->world_size() : 1, rank = group ? group->rank() : 0;
  TrainerOptions options;
  options.epochs = job.epochs;
  options.max_steps = job.max_steps;
  options.accumulate = job.accumulate;
  options.loss = Loss::mse;
  options.read_every = 3;
  options.should_stop = job.should_stop;
  options.checkpoints = {.folder = job.checkpoints, .in_background = false};
  if (group) options.group = shared_group(*group);
  options.optimizers = {std::make_shared<torch::optim::SGD>(plane->parameters(), kRate)};
  Trainer trainer(network(plane), options);
  if (job.callback) trainer.add(job.callback);
  if (!job.resume.empty()) trainer.resume(job.resume);
  const data::SyntheticRows rows = rows_of_a_plane();
  data::OrderOptions order{.batch_size = job.all_batch / ranks,
                           .shuffle = true,
                           .seed = 3,
                           .rank = rank,
                           .world_size = ranks};
  const data::TensorLoader training(rows.input, rows.target, order);
  order.shuffle = false;
  order.keep_all = true;
  order.batch_size = 5;
  const data::TensorLoader validation(rows.input.slice(0, 0, 17), rows.target.slice(0, 0, 17),
                                      order);
  return {trainer.fit(training, &validation), plane->weight.detach().clone()};
}

std::vector<PlaneOutcome> fit_planes(int ranks, const PlaneJob& job) {
  std::vector<PlaneOutcome> outcomes(static_cast<std::size_t>(ranks));
  const auto errors = on_ranks(ranks, [&](ProcessGroup& group) {
    outcomes[static_cast<std::size_t>(group.rank())] = fit_plane(job, &group);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  return outcomes;
}

// Both runs round: a gradient is a sum over the batch, of products with sums over the features,
// and over the ranks. |weight| <= 1 and |x| <= 2 throughout, so a term of it is at most
// 2 * 2 * (6 * 2 + 3). A step of gradient descent on least squares does not widen a distance, for a
// rate below 2 over the greatest curvature. So the weights of two runs differ by at most the sum of
// what their steps rounded.
double plane_tolerance(int64_t steps, int64_t all_batch, int ranks) {
  constexpr double kUnit = 0x1p-24, kTerm = 2 * 2 * (kPlaneFeatures * 2 + 3);
  const double roundings = static_cast<double>(all_batch + kPlaneFeatures + ranks + 8);
  const double of_gradient = roundings * kUnit * kTerm * std::sqrt(double{kPlaneFeatures});
  return 2 * static_cast<double>(steps) * (kRate * of_gradient + kUnit);
}

// The tolerance of a loss (r^2, |r| <= 15) whose weights differ so much.
double plane_loss_tolerance(int64_t steps, int64_t all_batch, int ranks) {
  return 2 * 15 * 2 * std::sqrt(double{kPlaneFeatures}) * plane_tolerance(steps, all_batch, ranks) +
         static_cast<double>(all_batch + 8) * 15 * 15 * 0x1p-24;
}

void expect_same_run(const PlaneOutcome& ranks, const PlaneOutcome& alone, int64_t all_batch,
                     int count) {
  const auto steps = std::ssize(alone.history.steps);
  ASSERT_EQ(std::ssize(ranks.history.steps), steps);
  EXPECT_LE((ranks.weight - alone.weight).norm().item<double>(),
            plane_tolerance(steps, all_batch, count));
  EXPECT_LE(alone.weight.abs().max().item<double>(), 1);  // as the tolerance supposes
  const double loss = plane_loss_tolerance(steps, all_batch, count);
  for (int64_t i = 0; i < steps; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_NEAR(ranks.history.steps[at].loss, alone.history.steps[at].loss, loss) << i;
  }
  ASSERT_EQ(ranks.history.epochs.size(), alone.history.epochs.size());
  for (std::size_t i = 0; i < alone.history.epochs.size(); ++i) {
    const EpochRecord& a = ranks.history.epochs[i];
    const EpochRecord& b = alone.history.epochs[i];
    EXPECT_EQ(a.examples, b.examples);
    EXPECT_NEAR(a.loss, b.loss, loss);
    ASSERT_TRUE(a.validation && b.validation);
    EXPECT_EQ(a.validation->examples, 17);
    EXPECT_NEAR(a.validation->loss, b.validation->loss, loss);
  }
}

TEST_F(RanksOfOneProcess, TrainAsOneProcessWithTheirBatchesTogether) {
  for (const int ranks : {2, 3}) {
    for (const int64_t accumulate : {1, 3}) {
      const PlaneJob job{.accumulate = accumulate, .epochs = 3};
      const PlaneOutcome alone = fit_plane(job, nullptr);
      ASSERT_EQ(std::ssize(alone.history.steps), accumulate == 1 ? 12 : 6);
      EXPECT_LT(alone.history.steps.back().loss, alone.history.steps.front().loss);
      const std::vector<PlaneOutcome> together = fit_planes(ranks, job);
      for (const PlaneOutcome& one : together) {
        expect_same_run(one, alone, job.all_batch * accumulate, ranks);
        EXPECT_TRUE(torch::equal(one.weight, together.front().weight));
        for (std::size_t i = 0; i < one.history.steps.size(); ++i)
          EXPECT_EQ(one.history.steps[i].loss, together.front().history.steps[i].loss);
      }
    }
  }
}

// Four ranks to step 3 in the middle of an epoch, two to the middle of the second, one to the end.
TEST_F(RanksOfOneProcess, ARunGoesOnOnFewerRanks) {
  PlaneJob job{.epochs = 3, .max_steps = 3, .checkpoints = folder_};
  fit_planes(4, job);
  job.resume = folder_;
  job.max_steps = 6;
  const std::vector<PlaneOutcome> two = fit_planes(2, job);
  ASSERT_EQ(std::ssize(two[0].history.steps), 6);
  EXPECT_EQ(two[1].history.steps[0].loss, two[0].history.steps[0].loss);
  job.max_steps = 0;
  const PlaneOutcome last = fit_plane(job, nullptr);
  const PlaneOutcome alone = fit_plane({.epochs = 3}, nullptr);
  expect_same_run(last, alone, job.all_batch, 4);
}

// After the second of four steps, and in the validation after them, which asks too.
TEST_F(RanksOfOneProcess, AreStoppedTogether) {
  for (const auto& [question, steps] : {std::pair{2, 2}, std::pair{5, 4}}) {
    std::vector<PlaneOutcome> outcomes(3);
    const auto errors = on_ranks(3, [&, at = question](ProcessGroup& group) {
      PlaneJob job{.epochs = 5};
      if (group.rank() == 1) job.should_stop = [asked = 0, at]() mutable { return ++asked == at; };
      outcomes[static_cast<std::size_t>(group.rank())] = fit_plane(job, &group);
    });
    ASSERT_THAT(errors, Each(IsEmpty()));
    for (const PlaneOutcome& one : outcomes) {
      EXPECT_TRUE(one.history.stopped);
      EXPECT_EQ(std::ssize(one.history.steps), steps);
    }
  }
}

TEST_F(RanksOfOneProcess, AreStoppedTogetherInAnEvaluation) {
  std::vector<Evaluation> results(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear plane(kPlaneFeatures, 1);
    const data::SyntheticRows rows = rows_of_a_plane();
    const data::TensorLoader loader(rows.input, rows.target, {.batch_size = 4});
    EvaluateOptions options{.loss = Loss::mse, .group = &group};
    options.should_stop = [&] { return group.rank() == 1; };
    results[static_cast<std::size_t>(group.rank())] = evaluate(network(plane), loader, options);
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  EXPECT_TRUE(results[0].stopped);
  EXPECT_TRUE(results[1].stopped);
}

// The outputs are whole numbers, so every sum is exact. With batches of 2 the fourth rank has no
// part of the last batch of 9 examples in some splits.
TEST_F(RanksOfOneProcess, TotalsOfAnEvaluationAreExact) {
  const at::Tensor logits = at::arange(0, 9 * 3, at::kFloat).view({9, 3}).remainder(5);
  const at::Tensor classes = at::arange(0, 9, at::kLong).remainder(3);
  const Network same{.module = std::make_shared<torch::nn::Identity>()->ptr(),
                     .forward = [](const data::Batch& batch) { return batch.input; }};
  const LossFunction count_right(Loss::cross_entropy);
  EvaluateOptions options{.loss = count_right, .per_class = true};
  options.metrics = {top_k(2)};
  const Evaluation alone =
      evaluate(same, data::TensorLoader(logits, classes, {.batch_size = 9}), options);
  for (const int ranks : {2, 4, 5}) {
    const auto errors = on_ranks(ranks, [&](ProcessGroup& group) {
      const data::TensorLoader loader(logits, classes,
                                      {.batch_size = 2,
                                       .rank = group.rank(),
                                       .world_size = group.world_size(),
                                       .keep_all = true});
      EvaluateOptions mine = options;
      mine.group = &group;
      const Evaluation all = evaluate(same, loader, mine);
      EXPECT_EQ(all.examples, 9);
      EXPECT_EQ(all.accuracy, alone.accuracy);
      EXPECT_EQ(all.metrics, alone.metrics);
      EXPECT_EQ(all.class_accuracy, alone.class_accuracy);
      EXPECT_NEAR(all.loss, alone.loss, 16 * 0x1p-24 * alone.loss);  // each batch's mean is fp32
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
}

// An overflow of rank 1's scaled gradients in step 2: both skip it, and back off.
TEST_F(RanksOfOneProcess, SkipTheSameStep) {
  std::vector<PlaneOutcome> outcomes(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear plane(torch::nn::LinearOptions(2, 1).bias(false));
    TrainerOptions options;
    options.precision = parse_precision("fp16");
    options.loss = Loss::mse;
    options.scaler.init_scale = 256;
    options.group = shared_group(group);
    options.optimizers = {std::make_shared<torch::optim::SGD>(plane->parameters(), 1e-3)};
    Trainer trainer(network(plane), options);
    at::Tensor x = at::ones({12, 2}), y = at::ones({12, 1});
    y.slice(0, 6, 8).fill_(3e4);  // rank 1's of the second batch; d loss / d output x 256 > 65,504
    const data::TensorLoader loader(x, y, {.batch_size = 2, .rank = group.rank(), .world_size = 2});
    outcomes[static_cast<std::size_t>(group.rank())].history = trainer.fit(loader);
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  for (const PlaneOutcome& one : outcomes) {
    ASSERT_EQ(one.history.steps.size(), 3);
    EXPECT_FALSE(one.history.steps[0].skipped);
    EXPECT_TRUE(one.history.steps[1].skipped);
    EXPECT_FALSE(one.history.steps[2].skipped);
    EXPECT_EQ(one.history.steps[1].loss_scale, 256);
    EXPECT_EQ(one.history.steps[2].loss_scale, 128);
  }
}

TEST_F(RanksOfOneProcess, ThatDifferAreNamedBeforeTheFirstStep) {
  const auto steps = on_ranks(
      3, [&](ProcessGroup& group) { fit_plane({.max_steps = group.rank() == 2 ? 4 : 3}, &group); });
  EXPECT_THAT(steps, Each(HasSubstr("max_steps 4 on rank 2; accepted: max_steps 3")));
  const auto data = on_ranks(2, [&](ProcessGroup& group) {
    fit_plane({.all_batch = group.rank() == 1 ? 24 : 12}, &group);
  });
  EXPECT_THAT(data, Each(HasSubstr("2 batches of training on rank 1")));
  const auto penalty = on_ranks(2, [&](ProcessGroup& group) {
    TrainerOptions options;
    options.group = shared_group(group);
    options.gradient_penalty = 1;
    Trainer(torch::nn::Linear(2, 2), options);
  });
  EXPECT_THAT(penalty, Each(HasSubstr("gradient penalty")));
}

class ThrowsInPlaneStep : public Callback {
 public:
  explicit ThrowsInPlaneStep(int64_t step) : step_(step) {}
  void after_backward(const StepView& view) override {
    if (view.step == step_) throw std::runtime_error("by the test");
  }

 private:
  int64_t step_;
};

// The other ranks end too, and what rank 0 saves goes on.
TEST_F(RanksOfOneProcess, OneThatThrowsEndsAllAndTheLastStepIsSaved) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    PlaneJob job{.epochs = 3, .checkpoints = folder_};
    if (group.rank() == 1) job.callback = std::make_shared<ThrowsInPlaneStep>(6);
    fit_plane(job, &group);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 left the group"),
                               HasSubstr("the last checkpoint is that of step 5, " +
                                         (folder_ / "step-00000005").string())));
  EXPECT_EQ(errors[1], "by the test");
  const PlaneOutcome last =
      fit_plane({.epochs = 3, .checkpoints = folder_, .resume = folder_}, nullptr);
  expect_same_run(last, fit_plane({.epochs = 3}, nullptr), 12, 2);
}

// Rank 0 may still be saving when the others say where to go on.
TEST_F(RanksOfOneProcess, OthersNameTheLastCheckpointSoFar) {
  fit_plane({.max_steps = 2, .checkpoints = folder_}, nullptr);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    PlaneJob job{.epochs = 3, .checkpoints = folder_, .resume = folder_};
    if (group.rank() == 0) job.callback = std::make_shared<ThrowsInPlaneStep>(3);
    fit_plane(job, &group);
  });
  EXPECT_EQ(errors[0], "by the test");
  EXPECT_THAT(errors[1],
              AllOf(HasSubstr("rank 0 left the group"),
                    HasSubstr("the last checkpoint is that of step 2, " + folder_.string()),
                    HasSubstr(", unless rank 0 saves another one as it ends")));
}

class LosesItsDevice : public Callback {
 public:
  void after_backward(const StepView& view) override {
    if (view.step == 2) throw DeviceError({.what = "the device is gone"});
  }
};

// One process has nobody to start again.
TEST_F(RanksOfOneProcess, AnErrorOfOneProcessStaysAsItIs) {
  try {
    fit_plane({.checkpoints = folder_, .callback = std::make_shared<LosesItsDevice>()}, nullptr);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "the device is gone");
  }
}

TEST_F(RanksOfOneProcess, DrawOtherRandomNumbersInEachStep) {
  std::vector<std::vector<double>> drawn(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear plane(1, 1);
    const Ranks ranks(*plane, shared_group(group), {});
    for (const int64_t step : {0, 1, 0}) {
      for (int turn = 0; turn < 2; ++turn) {
        group.barrier();  // the generator is the process's
        if (turn != group.rank()) continue;
        ranks.seed(5, step);
        drawn[static_cast<std::size_t>(turn)].push_back(torch::rand({1}).item<double>());
      }
    }
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  for (const auto& one : drawn) {
    EXPECT_EQ(one[0], one[2]);
    EXPECT_NE(one[0], one[1]);
  }
  EXPECT_NE(drawn[0][0], drawn[1][0]);
  EXPECT_NE(drawn[0][1], drawn[1][1]);
}

// One process is stopped between the batches of a step. Two ranks finish that step: its sums count
// once.
TEST_F(RanksOfOneProcess, GoOnWithinAStepOfOneProcess) {
  PlaneJob job{.accumulate = 3, .epochs = 2, .checkpoints = folder_};
  job.should_stop = [asked = 0]() mutable { return ++asked == 2; };
  fit_plane(job, nullptr);
  const std::vector<PlaneOutcome> two =
      fit_planes(2, {.accumulate = 3, .epochs = 2, .checkpoints = folder_, .resume = folder_});
  const PlaneOutcome alone = fit_plane({.accumulate = 3, .epochs = 2}, nullptr);
  for (const PlaneOutcome& one : two) expect_same_run(one, alone, 36, 2);
}

TEST_F(RanksOfOneProcess, FitOnTensorsSharesTheRows) {
  const data::SyntheticRows rows = rows_of_a_plane();
  std::vector<History> histories(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear plane(kPlaneFeatures, 1);
    TrainerOptions options{.loss = Loss::mse, .group = shared_group(group)};
    Trainer trainer(plane, options);
    histories[static_cast<std::size_t>(group.rank())] =
        trainer.fit(rows.input, rows.target,
                    {.epochs = 2,
                     .batch_size = 8,
                     .validation = {rows.input.slice(0, 0, 17), rows.target.slice(0, 0, 17)}});
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  for (const History& one : histories) {
    EXPECT_EQ(one.steps.size(), 6);
    EXPECT_EQ(one.epochs.back().examples, kPlaneRows);
    EXPECT_EQ(one.epochs.back().validation->examples, 17);
    EXPECT_EQ(one.epochs.back().loss, histories.front().epochs.back().loss);
  }
}

}  // namespace
}  // namespace demi::train

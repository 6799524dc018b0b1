#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "demi/optim/adamw.h"
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

class ShardOptimizer : public testing::OnRanks {
 protected:
  fs::path folder(const std::string& name) const { return folder_ / name; }
};

struct ShardJob {
  bool shares = true;
  int64_t max_steps = 0;
  fs::path checkpoints = {}, resume = {};
  Every every = {};
  bool keep_best = false;
  std::function<bool()> should_save = {}, should_stop = {};
  std::shared_ptr<Callback> callback = {};
  std::shared_ptr<torch::optim::Optimizer> optimizer = {};  // in place of AdamW
  std::optional<optim::NormLimit> limit = {};
};

struct ShardOutcome {
  History history;
  std::vector<at::Tensor> weights, averages;
};

// Two layers, with all that a training has: schedule, clipping, accumulation, averages, scaler.
ShardOutcome fit_sharded(const ShardJob& job, ProcessGroup& group) {
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
  testing::set_weights(*net);
  TrainerOptions options;
  options.precision = parse_precision("fp16");
  options.epochs = 3;
  options.max_steps = job.max_steps;
  options.accumulate = 2;
  options.clip_norm = 1;
  options.ema_decay = 0.75;
  options.schedule = optim::lr::cosine(20);
  options.read_every = 3;
  options.checkpoints = {.folder = job.checkpoints,
                         .every = job.every,
                         .keep_last = 0,
                         .keep_best = job.keep_best,
                         .in_background = false};
  options.should_save = job.should_save;
  options.should_stop = job.should_stop;
  options.group = testing::shared_group(group);
  options.shard_optimizer = job.shares;
  options.optimizers = {job.optimizer ? job.optimizer
                                      : std::make_shared<optim::AdamW>(
                                            net->parameters(), optim::AdamWOptions(0.05),
                                            optim::StepOptions{.skip_norm_above = job.limit})};
  Trainer trainer(network(net), options);
  if (job.callback) trainer.add(job.callback);
  if (!job.resume.empty()) trainer.resume(job.resume);
  const at::Tensor x = (at::arange(96 * 6, at::kDouble) * 1.3).sin().to(at::kFloat).view({96, 6});
  const at::Tensor y = at::remainder(at::arange(96), 3);
  data::OrderOptions order{.batch_size = 12 / group.world_size(),
                           .shuffle = true,
                           .seed = 3,
                           .rank = group.rank(),
                           .world_size = group.world_size()};
  const data::TensorLoader training(x, y, order);
  order.shuffle = false;
  order.keep_all = true;
  const data::TensorLoader validation(x.slice(0, 0, 17), y.slice(0, 0, 17), order);
  ShardOutcome outcome;
  outcome.history = trainer.fit(training, &validation);
  for (const at::Tensor& p : net->parameters()) outcome.weights.push_back(p.detach().clone());
  trainer.swap_average();
  for (const at::Tensor& p : net->parameters()) outcome.averages.push_back(p.detach().clone());
  return outcome;
}

std::vector<ShardOutcome> fit_sharded(int ranks, const ShardJob& job) {
  std::vector<ShardOutcome> outcomes(static_cast<std::size_t>(ranks));
  const auto errors = on_ranks(ranks, [&](ProcessGroup& group) {
    outcomes[static_cast<std::size_t>(group.rank())] = fit_sharded(job, group);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  return outcomes;
}

void expect_same_outcome(const ShardOutcome& a, const ShardOutcome& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(a.weights[i], b.weights[i])) << i;
    EXPECT_TRUE(at::equal(a.averages[i], b.averages[i])) << i;
  }
  ASSERT_EQ(a.history.steps.size(), b.history.steps.size());
  for (std::size_t i = 0; i < a.history.steps.size(); ++i) {
    EXPECT_EQ(a.history.steps[i].loss, b.history.steps[i].loss);
    EXPECT_EQ(a.history.steps[i].skipped, b.history.steps[i].skipped);
    EXPECT_EQ(a.history.steps[i].loss_scale, b.history.steps[i].loss_scale);
  }
}

std::vector<std::string> checkpoints_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && !entry.is_symlink()) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void expect_same_tensors(const checkpoint::NamedTensors& a, const checkpoint::NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    // The threads of one process have one generator of random numbers.
    const bool is_random = name.starts_with("random/") || name == "ranks/seed";
    if (is_random || name.find("seconds") != std::string::npos) continue;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

TEST_F(ShardOptimizer, TrainsAndSavesAsWithoutSharing) {
  const Every every = Every::parse("2");
  const auto whole = fit_sharded(
      3, {.shares = false, .checkpoints = folder("whole"), .every = every, .keep_best = true});
  const auto shared =
      fit_sharded(3, {.checkpoints = folder("shared"), .every = every, .keep_best = true});
  for (const ShardOutcome& outcome : shared) expect_same_outcome(outcome, whole.front());
  const auto names = checkpoints_in(folder("whole"));
  EXPECT_GE(names.size(), 6U);
  EXPECT_EQ(checkpoints_in(folder("shared")), names);
  for (const std::string& name : names) {
    const auto a = checkpoint::load(folder("whole") / name);
    const auto b = checkpoint::load(folder("shared") / name);
    expect_same_tensors(a.model, b.model);
    expect_same_tensors(a.state, b.state);
  }
  EXPECT_EQ(fs::exists(folder("shared") / "best"), fs::exists(folder("whole") / "best"));
}

// 8 batches an epoch, 4 steps: the fifth step ends within the second epoch.
TEST_F(ShardOptimizer, SkipsForItsNormOnAllRanks) {
  const auto free = fit_sharded(2, {});
  double greatest = 0;
  for (const StepMetrics& step : free.front().history.steps)
    if (!step.skipped) greatest = std::max(greatest, *step.grad_norm);
  const optim::NormLimit limit{.bound = greatest * 0.99, .deviations = 9};
  const auto whole =
      fit_sharded(2, {.shares = false, .checkpoints = folder("whole"), .limit = limit});
  const auto shared = fit_sharded(2, {.checkpoints = folder("shared"), .limit = limit});
  for (const ShardOutcome& outcome : shared) expect_same_outcome(outcome, whole.front());
  EXPECT_GE(std::ranges::count_if(whole.front().history.steps, &StepMetrics::skipped_for_norm), 1);
  const auto a = checkpoint::load(folder("whole") / "last").state;
  expect_same_tensors(a, checkpoint::load(folder("shared") / "last").state);
  EXPECT_GT(a.at("optimizer/accepted_norms")[127].item<float>(), 0);
}

// Each rank keeps what some of the 16-bit weights are trained as.
TEST_F(ShardOptimizer, EveryRankGetsWhatNarrowWeightsAreTrainedAs) {
  std::vector<std::map<std::string, at::Tensor>> all(3);
  std::vector<std::string> refusals(2);
  const auto fit = [&](ProcessGroup& group, bool shares, double ema) {
    torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
    testing::set_weights(*net);
    net->to(at::kBFloat16);
    TrainerOptions options;
    options.precision = parse_precision("bf16-true");
    options.ema_decay = ema;
    options.max_steps = 3;
    options.group = testing::shared_group(group);
    options.shard_optimizer = shares;
    options.optimizers = {std::make_shared<optim::AdamW>(
        net->parameters(), optim::AdamWOptions(0.05),
        optim::StepOptions{.weight_mode = optim::WeightMode::split})};
    Trainer trainer(network(net), options);
    const at::Tensor x = (at::arange(12 * 6, at::kDouble) * 1.3).sin().to(at::kFloat).view({12, 6});
    trainer.fit(data::TensorLoader(x, at::remainder(at::arange(12), 3),
                                   {.batch_size = 4 / group.world_size(),
                                    .shuffle = false,
                                    .rank = group.rank(),
                                    .world_size = group.world_size()}));
    return trainer.trained_weights();
  };
  EXPECT_THAT(on_ranks(2,
                       [&](ProcessGroup& group) {
                         const auto rank = static_cast<std::size_t>(group.rank());
                         all[rank] = fit(group, true, 0);
                         const auto whole = fit(group, false, 0);
                         if (rank == 0) all[2] = whole;
                         try {
                           fit(group, true, 0.5);
                         } catch (const UsageError& error) {
                           refusals[rank] = error.what();
                         }
                       }),
              Each(IsEmpty()));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(all[rank].size(), 4U);
    for (const auto& [name, weight] : all[2]) {
      EXPECT_TRUE(at::equal(all[rank].at(name), weight)) << name;
      EXPECT_FALSE(at::equal(weight, weight.to(at::kBFloat16).to(at::kFloat))) << name;
    }
    EXPECT_THAT(refusals[rank], HasSubstr("ema_decay, shard_optimizer, and 0.weight of bf16"));
  }
}

TEST_F(ShardOptimizer, GoesOnWithAndWithoutSharingOnAnyRanks) {
  fit_sharded(4, {.max_steps = 5, .checkpoints = folder("four")});
  fs::path begun = folder("four");
  for (const int ranks : {2, 3, 1}) {
    SCOPED_TRACE(ranks);
    const auto whole = fit_sharded(ranks, {.shares = false, .resume = begun});
    const auto shared = fit_sharded(ranks, {.resume = begun});
    EXPECT_EQ(shared.front().history.steps.size(), 12U);
    for (const ShardOutcome& outcome : shared) expect_same_outcome(outcome, whole.front());
  }
}

// Asked after each batch without sharing; with it after each step, in which all ranks take part.
TEST_F(ShardOptimizer, SavesWhenRankZeroIsAskedTo) {
  fit_sharded(2, {.max_steps = 6,
                  .checkpoints = folder("asked"),
                  .should_save = [asked = 0]() mutable { return ++asked == 3; }});
  EXPECT_EQ(checkpoints_in(folder("asked")),
            (std::vector<std::string>{"step-00000003", "step-00000006"}));
}

struct ThrowsInShardedStep final : Callback {
  explicit ThrowsInShardedStep(int64_t step) : at(step) {}
  void after_backward(const StepView& view) override {
    if (view.step == at) throw std::runtime_error("a broken disk");
  }
  int64_t at;
};

// The state that is missing lies on a rank that has left: what was saved before is there.
TEST_F(ShardOptimizer, AfterAnExceptionTheLastCheckpointIsThere) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    ShardJob job{.checkpoints = folder("broken"), .every = Every::parse("2")};
    if (group.rank() == 1) job.callback = std::make_shared<ThrowsInShardedStep>(5);
    fit_sharded(job, group);
  });
  const std::string last =
      "the last checkpoint is that of step 4, " + (folder("broken") / "step-00000004").string();
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 left the group"), HasSubstr(last)));
  EXPECT_EQ(errors[1], "a broken disk");
  EXPECT_EQ(checkpoints_in(folder("broken")),
            (std::vector<std::string>{"step-00000002", "step-00000004"}));
  const auto resumed = fit_sharded(2, {.resume = folder("broken")});
  expect_same_outcome(resumed.front(), fit_sharded(2, {}).front());
}

// Rank 0, which could save, does not wait for a state that the others do not send.
TEST_F(ShardOptimizer, AnExceptionOfTheSavingRankEndsTheOthers) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    ShardJob job{.checkpoints = folder("first"), .every = Every::parse("2")};
    if (group.rank() == 0) job.callback = std::make_shared<ThrowsInShardedStep>(5);
    fit_sharded(job, group);
  });
  EXPECT_EQ(errors[0], "a broken disk");
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 0 left the group"),
                               HasSubstr("the last checkpoint is that of step 4, ")));
  EXPECT_EQ(checkpoints_in(folder("first")),
            (std::vector<std::string>{"step-00000002", "step-00000004"}));
}

TEST_F(ShardOptimizer, AnExceptionBeforeTheFirstCheckpointSaysThatThereIsNone) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    ShardJob job{.checkpoints = folder("none"), .every = Every::parse("2")};
    if (group.rank() == 1) job.callback = std::make_shared<ThrowsInShardedStep>(1);
    fit_sharded(job, group);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1"), HasSubstr("no checkpoint has been saved yet")));
  EXPECT_THAT(checkpoints_in(folder("none")), IsEmpty());
}

// As a signal to one rank asks for it. It is asked after each step, and in each batch of a
// validation: for the fifth time in the one that follows the four steps of the first epoch.
TEST_F(ShardOptimizer, AStopOfAnyRankSavesTheStateOfAll) {
  const auto unbroken = fit_sharded(2, {});
  for (const auto& [asked, step] : {std::pair{3, "step-00000003"}, std::pair{5, "step-00000004"}})
    for (const int rank : {0, 1}) {
      SCOPED_TRACE(std::string(step) + ", rank " + std::to_string(rank));
      const fs::path saved = folder(step + std::to_string(rank));
      const auto errors = on_ranks(2, [&, at = asked](ProcessGroup& group) {
        ShardJob job{.checkpoints = saved};
        if (group.rank() == rank) job.should_stop = [times = at]() mutable { return --times <= 0; };
        EXPECT_TRUE(fit_sharded(job, group).history.stopped);
      });
      EXPECT_THAT(errors, Each(IsEmpty()));
      EXPECT_EQ(checkpoints_in(saved), std::vector<std::string>{step});
      const auto resumed = fit_sharded(2, {.resume = saved});
      for (const ShardOutcome& outcome : resumed) expect_same_outcome(outcome, unbroken.front());
    }
}

TEST_F(ShardOptimizer, RanksThatShareAndDoNotAreFoundAtTheStart) {
  const auto errors =
      on_ranks(2, [&](ProcessGroup& group) { fit_sharded({.shares = group.rank() == 0}, group); });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("shard_optimizer true, as on rank 0"),
                                 HasSubstr("shard_optimizer false on rank 1"))));
}

TEST_F(ShardOptimizer, AnOptimizerOfLibTorchIsRefused) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const std::vector<at::Tensor> p{torch::zeros({2}).requires_grad_()};
    fit_sharded({.optimizer = std::make_shared<torch::optim::SGD>(p, 0.1)}, group);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("cannot share the state of this optimizer"),
                                 HasSubstr("demi::optim's"))));
}

}  // namespace
}  // namespace demi::train

// Causes that would make the ranks of a training differ from one process with all their batches, or
// from each other: the run is trained as there, or refused before it does harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/nn/linear_cross_entropy.h"
#include "demi/optim/sgd.h"
#include "demi/schedule/lr_schedule.h"
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

constexpr int64_t kPartRows = 24, kPartsTogether = 8;  // of all ranks together
constexpr double kPartRate = 0.5;

// FP64: what one process and several ranks round differently is 1e-15 of a sum of 8 rows, in at
// most 12 steps of a net whose steps do not widen it by more than a factor of 2 each.
constexpr double kPartTolerance = 1e-11;

// The objects that a rank trains, and its options.
struct Part {
  torch::nn::Sequential net;
  TrainerOptions options;
  data::OrderOptions order;
  at::Tensor x, y;
  std::vector<std::shared_ptr<Callback>> callbacks;
  std::function<void(Trainer&)> before_fit;
  int rank = 0;
  bool own_loss = false;  // the network computes it
  bool has_targets = true;
};
using Change = std::function<void(Part&)>;

struct PartOutcome {
  History history;
  std::vector<at::Tensor> weights;
};

torch::nn::Sequential net_of_two_layers(int64_t classes = 3) {
  torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Tanh(),
                            torch::nn::Linear(6, classes));
  testing::set_weights(*net);
  net->to(torch::kDouble);
  return net;
}

Network network_of(const Part& part) {
  Network result = network(part.net);
  if (part.own_loss)
    result.loss = [net = part.net](const data::Batch& batch, double label_smoothing) {
      const auto* head = net->ptr(2)->as<torch::nn::Linear>();
      const at::Tensor hidden =
          torch::tanh(net->ptr(0)->as<torch::nn::Linear>()->forward(batch.input));
      auto [mean, right] = linear_cross_entropy_and_right(
          hidden, head->weight, batch.target,
          {.linear_bias = head->bias, .label_smoothing = label_smoothing});
      return OwnLoss{mean, right};
    };
  return result;
}

class InputsAlone : public data::TensorLoader {
 public:
  using TensorLoader::TensorLoader;
  data::Batch batch(int64_t epoch, int64_t position) const override {
    return {.input = TensorLoader::batch(epoch, position).input};
  }
};

PartOutcome train_part(ProcessGroup* group, const Change& change) {
  Part part{.net = net_of_two_layers(), .options = {}, .order = {}, .x = {}, .y = {}};
  part.x = (at::arange(kPartRows * 4, at::kDouble) * 1.3).sin().view({kPartRows, 4});
  part.y = at::arange(kPartRows, at::kLong).remainder(3);
  part.options.precision = parse_precision("fp64");
  part.options.epochs = 2;
  const int64_t ranks = group ? group->world_size() : 1;
  part.rank = group ? group->rank() : 0;
  if (group) part.options.group = testing::shared_group(*group);
  part.order = {.batch_size = kPartsTogether / ranks, .rank = part.rank, .world_size = ranks};
  change(part);
  if (part.options.optimizers.empty())
    part.options.optimizers = {
        std::make_shared<torch::optim::SGD>(part.net->parameters(), kPartRate)};
  Trainer trainer(network_of(part), part.options);
  for (const auto& callback : part.callbacks) trainer.add(callback);
  if (part.before_fit) part.before_fit(trainer);
  PartOutcome outcome;
  outcome.history = part.has_targets ? trainer.fit(data::TensorLoader(part.x, part.y, part.order))
                                     : trainer.fit(InputsAlone(part.x, part.y, part.order));
  for (const at::Tensor& p : part.net->parameters()) outcome.weights.push_back(p.detach().clone());
  return outcome;
}

std::vector<std::string> train_on(int ranks, const Change& change,
                                  std::vector<PartOutcome>& outcomes) {
  outcomes.assign(static_cast<std::size_t>(ranks), {});
  return on_ranks(ranks, [&](ProcessGroup& group) {
    outcomes[static_cast<std::size_t>(group.rank())] = train_part(&group, change);
  });
}

std::vector<std::string> errors_of(int ranks, const Change& change) {
  std::vector<PartOutcome> outcomes;
  return train_on(ranks, change, outcomes);
}

void expect_same_parts(const PartOutcome& a, const PartOutcome& b) {
  ASSERT_EQ(a.history.steps.size(), b.history.steps.size());
  for (std::size_t i = 0; i < a.history.steps.size(); ++i)
    EXPECT_NEAR(a.history.steps[i].loss, b.history.steps[i].loss, kPartTolerance) << i;
  for (std::size_t i = 0; i < a.weights.size(); ++i)
    EXPECT_LE((a.weights[i] - b.weights[i]).abs().max().item<double>(), kPartTolerance) << i;
}

// On 2 and 3 ranks as alone, and with the same bits on all.
void expect_as_alone(const Change& change, std::vector<int> counts = {2}) {
  const PartOutcome alone = train_part(nullptr, change);
  for (const int ranks : counts) {
    std::vector<PartOutcome> outcomes;
    ASSERT_THAT(train_on(ranks, change, outcomes), Each(IsEmpty()));
    for (const PartOutcome& one : outcomes) {
      expect_same_parts(one, alone);
      for (std::size_t i = 0; i < one.weights.size(); ++i)
        EXPECT_TRUE(torch::equal(one.weights[i], outcomes[0].weights[i])) << i;
    }
  }
}

class RanksAgree : public testing::OnRanks {};

// Between two batches of a step each rank has gradients of its own: what is asked for there is
// saved after the step, and goes on as if nothing had been asked.
TEST_F(RanksAgree, OnASaveThatIsAskedForWithinAStep) {
  const Change all = [](Part& part) {
    part.options.accumulate = 2;
    part.order.batch_size /= 2;
  };
  std::vector<PartOutcome> whole, saved, resumed;
  ASSERT_THAT(train_on(2, all, whole), Each(IsEmpty()));
  const Change saves = [&](Part& part) {
    all(part);
    part.options.max_steps = 2;
    part.options.checkpoints = {.folder = folder_, .keep_last = 9, .in_background = false};
    part.options.should_save = [asked = 0]() mutable { return ++asked == 1; };
  };
  ASSERT_THAT(train_on(2, saves, saved), Each(IsEmpty()));
  ASSERT_TRUE(fs::exists(folder_ / "step-00000001"));
  const Change resumes = [&](Part& part) {
    all(part);
    part.before_fit = [&](Trainer& trainer) { trainer.resume(folder_ / "step-00000001"); };
  };
  ASSERT_THAT(train_on(2, resumes, resumed), Each(IsEmpty()));
  for (std::size_t i = 0; i < whole[0].weights.size(); ++i)
    for (const PartOutcome& one : resumed)
      EXPECT_TRUE(torch::equal(one.weights[i], whole[0].weights[i])) << i;
}

class Unfreezes : public Callback {
 public:
  explicit Unfreezes(torch::nn::Sequential net) : net_(std::move(net)) {}
  void on_epoch_begin(int64_t epoch, int64_t, int64_t) override {
    if (epoch != 2) return;
    for (at::Tensor& p : net_[0]->parameters()) p.requires_grad_(true);
  }

 private:
  torch::nn::Sequential net_;
};

TEST_F(RanksAgree, OnParametersThatAreUnfrozenLater) {
  expect_as_alone(
      [](Part& part) {
        for (at::Tensor& p : part.net[0]->parameters()) p.requires_grad_(false);
        part.callbacks = {std::make_shared<Unfreezes>(part.net)};
      },
      {2, 4});
}

// A second loss that reaches a parameter of a second optimizer alone, in both orders.
TEST_F(RanksAgree, OnLossesThatReachNoParameterOfTheModel) {
  for (const bool last : {true, false})
    expect_as_alone([last](Part& part) {
      const at::Tensor s = at::full({2}, 0.5, at::kDouble).requires_grad_();
      part.options.optimizers = {
          std::make_shared<torch::optim::SGD>(part.net->parameters(), kPartRate),
          std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{s}, 0.1)};
      part.options.losses = [s, last](const Network& net, const data::Batch& batch) {
        const at::Tensor first = torch::cross_entropy_loss(net.forward(batch), batch.target);
        const at::Tensor second = (s * s).sum();
        return last ? std::vector<at::Tensor>{first, second}
                    : std::vector<at::Tensor>{second, first};
      };
    });
}

// A learned temperature, which is no parameter of the module, and other on rank 1 at first.
TEST_F(RanksAgree, OnParametersOutsideOfTheModel) {
  std::vector<at::Tensor> alone(1), together(2);
  const auto with = [](std::vector<at::Tensor>& temperatures) {
    return [&temperatures](Part& part) {
      const at::Tensor t = at::full({1}, 1.5 + part.rank, at::kDouble).requires_grad_();
      temperatures[static_cast<std::size_t>(part.rank)] = t;
      std::vector<at::Tensor> all = part.net->parameters();
      all.push_back(t);
      part.options.clip_norm = 0.1;
      part.options.optimizers = {std::make_shared<torch::optim::SGD>(all, kPartRate)};
      part.options.losses = [t](const Network& net, const data::Batch& batch) {
        return std::vector<at::Tensor>{
            torch::cross_entropy_loss(net.forward(batch) / t, batch.target)};
      };
    };
  };
  const PartOutcome one = train_part(nullptr, with(alone));
  std::vector<PartOutcome> two;
  ASSERT_THAT(train_on(2, with(together), two), Each(IsEmpty()));
  expect_same_parts(two[0], one);
  EXPECT_NEAR(together[0].item<double>(), alone[0].item<double>(), kPartTolerance);
  EXPECT_TRUE(torch::equal(together[0], together[1]));
  EXPECT_NE(alone[0].item<double>(), 1.5);
}

// A rank whose part of a batch has no target that counts, and ranks whose parts have some.
TEST_F(RanksAgree, OnTargetsThatAreIgnored) {
  for (const bool own_loss : {false, true})
    expect_as_alone(
        [&](Part& part) {
          part.y.slice(0, 4, 9).fill_(-100);
          part.y[17] = -100;
          part.options.label_smoothing = 0.1;
          part.own_loss = own_loss && part.options.group;  // alone it is the loss by name
        },
        {2, 4});
}

// In uint8 the class 156 has the bits of -100, which is ignored: a rank's part of it alone counts.
TEST_F(RanksAgree, OnClassesOfUint8) {
  expect_as_alone(
      [](Part& part) {
        part.net = net_of_two_layers(/*classes=*/160);
        part.y.slice(0, 4, 9).fill_(156);
        part.y[17] = 156;
        part.y = part.y.to(torch::kByte);
      },
      {2, 4});
}

TEST_F(RanksAgree, OnOptionsThatAreCompared) {
  const auto on_rank_1 = [](const std::function<void(TrainerOptions&)>& change) {
    return errors_of(2, [&](Part& part) {
      if (part.rank == 1) change(part.options);
    });
  };
  EXPECT_THAT(on_rank_1([](TrainerOptions& o) { o.metrics = {top_k(2)}; }),
              Each(HasSubstr("metrics top2_accuracy on rank 1; accepted: metrics none")));
  EXPECT_THAT(on_rank_1([](TrainerOptions& o) { o.loss = LossFunction(Loss::cross_entropy, 3); }),
              Each(AllOf(HasSubstr("cross_entropy, weight 3 on rank 1"), HasSubstr("weight 1"))));
  EXPECT_THAT(on_rank_1([](TrainerOptions& o) { o.loss = LossFunction(Loss::mse); }),
              Each(HasSubstr("loss mse, weight 1 on rank 1")));
  const auto schedules = errors_of(2, [](Part& part) {
    part.options.schedule = optim::lr::exponential(part.rank == 1 ? 0.5 : 0.25);
  });
  EXPECT_THAT(schedules,
              Each(AllOf(HasSubstr("schedule, by step: 0: 0.5, 1: 0.25"), HasSubstr("on rank 1"),
                         HasSubstr("schedule, by step: 0: 0.5, 1: 0.125"))));
}

class ChangesItsRate : public Callback {
 public:
  explicit ChangesItsRate(bool really) : really_(really) {}
  void after_update(const StepView& view) override {
    if (!really_ || view.step != 2) return;
    view.optimizers[0]->param_groups()[0].options().set_lr(0.25);
  }

 private:
  bool really_;
};

class AddsNoise : public Callback {
 public:
  explicit AddsNoise(bool really) : really_(really) {}
  void after_update(const StepView& view) override {
    if (!really_ || view.step != 2) return;
    const torch::NoGradGuard no_grad;
    view.module.parameters()[2].add_(1e-6);
  }

 private:
  bool really_;
};

TEST_F(RanksAgree, OnWeightsAndRatesAtTheEndOfEachEpoch) {
  const auto rates = errors_of(
      3, [](Part& part) { part.callbacks = {std::make_shared<ChangesItsRate>(part.rank == 1)}; });
  EXPECT_THAT(rates, Each(AllOf(HasSubstr("at the end of epoch 1"),
                                HasSubstr("learning rate 0.25 on rank 1"))));
  const auto weights = errors_of(
      3, [](Part& part) { part.callbacks = {std::make_shared<AddsNoise>(part.rank == 2)}; });
  EXPECT_THAT(weights,
              Each(AllOf(HasSubstr("at the end of epoch 1"),
                         HasSubstr("parameter 2.weight: checksum "), HasSubstr("on rank 2"))));
  const auto loaded = errors_of(2, [](Part& part) {
    part.before_fit = [net = part.net, rank = part.rank](Trainer&) {
      const torch::NoGradGuard no_grad;
      if (rank == 0) net->parameters()[0].mul_(2);
    };
  });
  EXPECT_THAT(loaded, Each(AllOf(HasSubstr("where the training begins"),
                                 HasSubstr("parameter 0.weight: checksum"))));
  const auto unasked = errors_of(2, [](Part& part) {
    part.options.distributed.compare_weights = false;
    part.callbacks = {std::make_shared<AddsNoise>(part.rank == 1)};
  });
  EXPECT_THAT(unasked, Each(IsEmpty()));
}

TEST_F(RanksAgree, OnWhoTrainsOnWhat) {
  const auto same =
      errors_of(2, [](Part& part) { part.order.rank = 0, part.order.world_size = 1; });
  EXPECT_THAT(same, Each(AllOf(HasSubstr("the ranks do not share the examples of training"),
                               HasSubstr("48 examples on 2 ranks"), HasSubstr("accepted: 24"))));
  const auto few = errors_of(3, [](Part& part) {
    part.x = part.x.slice(0, 0, 2);
    part.y = part.y.slice(0, 0, 2);
  });
  EXPECT_THAT(few, Each(AllOf(HasSubstr("fewer examples of training than ranks"),
                              HasSubstr("2 for 3 ranks"))));
}

// 17 examples on 2 ranks: batches of 8 and 8, where one process has 8, 8 and 1. The epoch
// that two began is ended by one as it was begun, and the next has all examples.
TEST_F(RanksAgree, OnTheEndOfAnEpochThatMoreRanksBegan) {
  for (const bool has_targets : {true, false}) {
    SCOPED_TRACE(has_targets);
    const fs::path folder = folder_ / (has_targets ? "with" : "without");
    const Change all = [&](Part& part) {
      part.x = part.x.slice(0, 0, 17);
      part.y = part.y.slice(0, 0, 17);
      part.has_targets = has_targets;
      if (!has_targets)
        part.options.losses = [](const Network& net, const data::Batch& batch) {
          return std::vector{net.forward(batch).square().mean()};
        };
    };
    const Change begins = [&](Part& part) {
      all(part);
      part.options.max_steps = 1;
      part.options.checkpoints = {.folder = folder, .in_background = false};
    };
    std::vector<PartOutcome> two;
    ASSERT_THAT(train_on(2, begins, two), Each(IsEmpty()));
    const PartOutcome one = train_part(nullptr, [&](Part& part) {
      all(part);
      part.before_fit = [&](Trainer& trainer) { trainer.resume(folder); };
    });
    ASSERT_EQ(one.history.epochs.size(), 2U);
    EXPECT_EQ(one.history.epochs[0].examples, 16);
    EXPECT_EQ(one.history.epochs[1].examples, 17);
    EXPECT_EQ(one.history.steps.size(), 2U + 3U);
    // Other batches are refused as before.
    try {
      train_part(nullptr, [&](Part& part) {
        all(part);
        part.order.batch_size = 4;
        part.before_fit = [&](Trainer& trainer) { trainer.resume(folder); };
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("from the middle of an epoch of other batches"));
    }
  }
}

// 9 examples that no rank leaves out: 2 of each step are on rank 0, 2 on rank 1, the last on one.
// Each rank counts alike where both have some.
TEST_F(RanksAgree, OnUnevenBatches) {
  const Change nine = [](Part& part) {
    part.x = part.x.slice(0, 0, 9);
    part.y = part.y.slice(0, 0, 9);
    part.order.batch_size = part.options.group ? 2 : 4;
    part.order.keep_all = true;
    part.options.distributed.uneven_batches = true;
  };
  expect_as_alone(nine);
  // One step of all batches: the last of them is rank 1's, and the two of rank 0 wait for it.
  std::vector<PartOutcome> outcomes;
  ASSERT_THAT(train_on(
                  2,
                  [&](Part& part) {
                    nine(part);
                    part.options.accumulate = 3;
                  },
                  outcomes),
              Each(IsEmpty()));
  for (const PartOutcome& one : outcomes) {
    EXPECT_EQ(one.history.steps.size(), 2U);
    EXPECT_EQ(one.history.epochs[0].examples, 9);
    EXPECT_TRUE(torch::equal(one.weights[0], outcomes[0].weights[0]));
  }
  const auto equal = errors_of(2, [&](Part& part) {
    nine(part);
    part.options.distributed.uneven_batches = false;
  });
  EXPECT_THAT(equal, Each(HasSubstr("batches of training on rank 1")));
}

// As many batches, of other sizes: each rank counts alike.
TEST_F(RanksAgree, OnBatchesOfOtherSizes) {
  const Change seven = [](Part& part) {
    part.x = part.x.slice(0, 0, 7);
    part.y = part.y.slice(0, 0, 7);
    part.order.batch_size = part.options.group ? 4 : 8;
    part.order.keep_all = true;
  };
  std::vector<PartOutcome> outcomes;
  ASSERT_THAT(train_on(2, seven, outcomes), Each(IsEmpty()));
  for (const PartOutcome& one : outcomes) EXPECT_EQ(one.history.epochs[0].examples, 7);
  EXPECT_TRUE(torch::equal(outcomes[0].weights[0], outcomes[1].weights[0]));
}

TEST_F(RanksAgree, ThatASharedStateIsResumedFromAFile) {
  const auto errors = errors_of(2, [](Part& part) {
    part.options.shard_optimizer = true;
    part.options.optimizers = {std::make_shared<optim::SGD>(
        part.net->parameters(), optim::SGDOptions(kPartRate).momentum(0.9))};
    part.before_fit = [x = part.x, y = part.y, order = part.order](Trainer& trainer) {
      const data::TensorLoader loader(x, y, order);
      Trainer::Parts parts(trainer, loader);
      parts.advance(1);
      trainer.resume(parts.checkpoint());
    };
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("rank 0 alone has all of it"), HasSubstr("resume(path)"))));
}

}  // namespace
}  // namespace demi::train

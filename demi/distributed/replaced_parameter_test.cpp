// optim::replace_parameter on several ranks, which are threads, and with replicas of a module.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/distributed/data_parallel.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/distributed/sharded_optimizer_state.h"
#include "demi/optim/replace_parameter.h"
#include "demi/optim/sgd.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 2;

// The gradient of each parameter is what a rank's batch says.
struct Tables : torch::nn::Module {
  at::Tensor grows = register_parameter("grows", torch::ones({4, 3}));
  at::Tensor stays = register_parameter("stays", torch::ones({5}));

  void set(const at::Tensor& now) { parameters_["grows"] = grows = now; }
  void backward(int rank, int step) const {
    (grows * gradient_of(grows, rank, step)).sum().backward();
    (stays * gradient_of(stays, rank, step)).sum().backward();
  }
  static at::Tensor gradient_of(const at::Tensor& p, int rank, int step) {
    const at::Tensor all = torch::arange(p.numel(), at::kFloat) * (rank + 1) + step;
    return all.cos().view(p.sizes());
  }
};

at::Tensor grown(const at::Tensor& from, const at::Tensor& rows) {
  const at::Tensor new_rows = (rows < 0).view({-1, 1}).to(at::kFloat);
  return from.detach().index_select(0, rows.clamp_min(0)).add_(new_rows).requires_grad_();
}

at::Tensor rows_of_growth() { return torch::tensor({3L, 0L, -1L, 1L, 1L, -1L}); }

TEST(ReplacedOnRanks, TheAverageIsThatOfTheNewParameter) {
  Tables one;
  optim::SGD alone(one.parameters(), optim::SGDOptions(0.25).momentum(0.5));
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      const at::Tensor old = one.grows;
      one.set(grown(old, rows_of_growth()));
      optim::replace_parameter(alone, old, one.grows, rows_of_growth());
    }
    for (const at::Tensor& p : one.parameters())
      p.mutable_grad() = Tables::gradient_of(p, 0, step) / 2 + Tables::gradient_of(p, 1, step) / 2;
    alone.step();
  }
  const auto errors = on_ranks(kRanks, [&](ProcessGroup& group) {
    Tables model;
    DistributedDataParallel parallel(model, group);
    optim::SGD sgd(model.parameters(), optim::SGDOptions(0.25).momentum(0.5));
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        const at::Tensor old = model.grows;
        model.set(grown(old, rows_of_growth()));
        optim::replace_parameter(sgd, old, model.grows, rows_of_growth());
      }
      sgd.zero_grad();
      {
        const auto held = parallel.no_sync();
        (model.grows * Tables::gradient_of(model.grows, group.rank(), step)).sum().backward();
      }
      (model.stays * Tables::gradient_of(model.stays, group.rank(), step)).sum().backward();
      EXPECT_EQ(parallel.last_reduced().planned, step == 0 || step == 3) << step;
      sgd.step();
    }
    EXPECT_TRUE(at::equal(model.grows, one.grows)) << model.grows - one.grows;
    EXPECT_TRUE(at::equal(model.stays, one.stays));
    const std::string seen = parallel.checksums();
    EXPECT_THAT(seen, HasSubstr("grows"));
    EXPECT_EQ(seen, DistributedDataParallel(model, group).checksums()) << "of the weights of now";
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Who still has the old parameter may go on with it: its gradients are nobody's on other ranks.
TEST(ReplacedOnRanks, TheOldParameterIsNotSentAnyMore) {
  const auto errors = on_ranks(kRanks, [&](ProcessGroup& group) {
    Tables model;
    const DistributedDataParallel parallel(model, group);
    optim::SGD sgd(model.parameters(), optim::SGDOptions(0.25));
    model.backward(group.rank(), 0);
    const at::Tensor old = model.grows;
    model.set(grown(old, rows_of_growth()));
    optim::replace_parameter(sgd, old, model.grows, rows_of_growth());
    const std::int64_t rounds = parallel.rounds();
    old.mutable_grad() = at::Tensor();
    (old * (group.rank() + 1)).sum().backward();
    EXPECT_EQ(parallel.rounds(), rounds);
    EXPECT_TRUE(at::equal(old.grad(), at::full({4, 3}, group.rank() + 1.F))) << "no average";
    EXPECT_FALSE(model.grows.grad().defined());
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// A gradient that was added up before the replacement is the old parameter's. What the new one has
// without a backward of its own stays each rank's, as a parameter's that no backward reaches.
TEST(ReplacedOnRanks, WhatTheOldOneHasAddedUpIsNotTheNewOnes) {
  const auto errors = on_ranks(kRanks, [&](ProcessGroup& group) {
    Tables model;
    DistributedDataParallel parallel(model, group);
    optim::SGD sgd(model.parameters(), optim::SGDOptions(0.25));
    {
      const auto held = parallel.no_sync();
      (model.grows * 2).sum().backward();
    }
    const at::Tensor old = model.grows;
    model.set(grown(old, rows_of_growth()));
    optim::replace_parameter(sgd, old, model.grows, rows_of_growth());
    const at::Tensor own = at::full({6, 3}, group.rank() + 1.F);
    model.grows.mutable_grad() = own.clone();
    (model.stays * (group.rank() + 1)).sum().backward();
    EXPECT_TRUE(at::equal(model.stays.grad(), at::full({5}, 1.5F)));
    EXPECT_TRUE(at::equal(model.grows.grad(), own));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ReplacedOnRanks, OtherRowsOrValuesAreAnErrorOnAll) {
  for (const bool other_rows : {true, false}) {
    const auto errors = on_ranks(kRanks, [&](ProcessGroup& group) {
      Tables model;
      const DistributedDataParallel parallel(model, group);
      optim::SGD sgd(model.parameters(), optim::SGDOptions(0.25));
      at::Tensor rows = rows_of_growth();
      const at::Tensor old = model.grows, now = grown(old, rows);
      if (group.rank() == 1) {
        const at::NoGradGuard no_grad;
        other_rows ? rows[0].fill_(2) : now[0].fill_(2);
      }
      model.set(now);
      optim::replace_parameter(sgd, old, now, rows);
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("a replaced parameter"),
                                   HasSubstr(other_rows ? "its rows" : "its values"))));
  }
}

struct GrowingLayer : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::ones({4, 3}));
  void set(const at::Tensor& now) { parameters_["weight"] = weight = now; }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight.t()); }
};

TEST(ReplacedOnReplicas, TheyComputeWithTheNewParameter) {
  const auto make = [] { return std::make_shared<GrowingLayer>(); };
  const auto one = make(), several = make();
  DataParallel parallel(several, {.devices = {at::kCPU, at::kCPU}, .make_replica = make});
  optim::SGD alone(one->parameters(), optim::SGDOptions(0.01).momentum(0.5)),
      sgd(several->parameters(), optim::SGDOptions(0.01).momentum(0.5));
  const at::Tensor x = torch::arange(12, at::kFloat).view({4, 3}).sin();
  for (int step = 0; step < 6; ++step) {
    if (step == 3)
      for (const auto& [layer, optimizer] : {std::pair{one, &alone}, {several, &sgd}}) {
        const at::Tensor old = layer->weight;
        layer->set(grown(old, rows_of_growth()));
        optim::replace_parameter(*optimizer, old, layer->weight, rows_of_growth());
      }
    one->forward(x).square().sum().backward();
    parallel(x).square().sum().backward();
    for (optim::SGD* optimizer : {&alone, &sgd}) {
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  EXPECT_EQ(several->weight.size(0), 6);
  EXPECT_TRUE(at::allclose(several->weight, one->weight, 1e-4, 1e-5));
}

TEST(ReplacedOnRanks, ASharedStateIsRefused) {
  const auto errors = on_ranks(kRanks, [&](ProcessGroup& group) {
    Tables model;
    optim::SGD sgd(model.parameters(), optim::SGDOptions(0.25));
    const ShardedOptimizerState shards(sgd, group);
    optim::replace_parameter(sgd, model.grows, grown(model.grows, rows_of_growth()),
                             rows_of_growth());
  });
  EXPECT_THAT(errors, Each(HasSubstr("several processes share the state")));
}

}  // namespace
}  // namespace demi::distributed

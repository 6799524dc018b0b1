// An optimizer whose groups have different rules, shared by ranks: Muon's matrices whole, by their
// products, beside AdamW's parameters by their elements.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/distributed/sharded_optimizer_state.h"
#include "demi/optim/all.h"
#include "demi/optim/clip.h"
#include "demi/optim/multi_optimizer.h"
#include "demi/optim/testing.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using optim::testing::parameter;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Tensors = std::vector<at::Tensor>;

Tensors some_parameters() {
  Tensors all{parameter({40, 30}),
              parameter({30, 40}, at::kFloat, 2),
              parameter({8, 3, 3, 3}, at::kFloat, 3),
              parameter({64, 80}, at::kBFloat16, 4),
              parameter({20, 30}, at::kFloat, 5),
              parameter({900}, at::kFloat, 6),
              parameter({7}, at::kBFloat16, 7)};
  const at::NoGradGuard no_grad;
  all[2] = all[2].detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  return all;
}

std::unique_ptr<optim::MultiOptimizer> muon_and_adamw(const Tensors& p, bool with_sgd) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      Tensors(p.begin(), p.begin() + 5),
      std::make_unique<optim::MuonOptions>(
          optim::MuonOptions(0.02).sgd(with_sgd ? 0.5 : 0).products(optim::MatrixProducts::fp32)));
  groups.emplace_back(Tensors(p.begin() + 5, p.end()), std::make_unique<optim::AdamWOptions>(1e-2));
  return std::make_unique<optim::MultiOptimizer>(
      groups,
      optim::StepOptions{.moments = optim::Moments::int8, .weight_mode = optim::WeightMode::split});
}

struct RulesRun {
  Tensors parameters;
  std::map<std::string, at::Tensor> state;  // of rank 0, whole
};

/// Four clipped steps; the third has an Inf. `group`: null without sharing.
RulesRun four_steps(bool with_sgd, ProcessGroup* group) {
  const Tensors p = some_parameters();
  const auto optimizer = muon_and_adamw(p, with_sgd);
  std::unique_ptr<ShardedOptimizerState> shards;
  if (group) shards = std::make_unique<ShardedOptimizerState>(*optimizer, *group);
  for (int step = 0; step < 4; ++step) {
    for (const at::Tensor& one : p)
      one.mutable_grad() = optim::testing::gradient(one, at::kBFloat16, step);
    if (step == 2) p[5].mutable_grad()[0] = std::numeric_limits<float>::infinity();
    optim::clip_grad_norm_(p, 2);
    optimizer->step();
    EXPECT_EQ(optimizer->last_step().skipped(), step == 2);
  }
  if (shards) shards->consolidate();
  RulesRun run;
  if (!group || group->rank() == 0)
    for (const auto& [name, tensor] : optimizer->state_tensors()) run.state[name] = tensor.clone();
  for (const at::Tensor& one : p) run.parameters.push_back(one.detach());
  return run;
}

class RulesOver : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ShardedRules, RulesOver, ::testing::Values(1, 2, 3));

TEST_P(RulesOver, StepsHaveTheBitsOfOneThatSharesNothing) {
  const int n = GetParam();
  for (const bool with_sgd : {false, true}) {
    const RulesRun alone = four_steps(with_sgd, nullptr);
    std::vector<RulesRun> runs(static_cast<std::size_t>(n));
    const auto errors = on_ranks(n, [&](ProcessGroup& group) {
      runs[static_cast<std::size_t>(group.rank())] = four_steps(with_sgd, &group);
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    for (const RulesRun& run : runs)
      for (std::size_t i = 0; i < alone.parameters.size(); ++i)
        EXPECT_TRUE(at::equal(run.parameters[i], alone.parameters[i])) << n << " parameter " << i;
    ASSERT_EQ(runs[0].state.size(), alone.state.size());
    for (const auto& [name, tensor] : alone.state)
      EXPECT_TRUE(at::equal(runs[0].state.at(name), tensor)) << n << " " << name;
  }
}

// 64 x 80: 2 x 5 x 64^2 (2 x 80 + 64) multiplications and additions, a thousand as an element.
TEST(ShardedRules, MatricesCostTheirProducts) {
  const auto optimizer = muon_and_adamw(some_parameters(), false);
  const std::vector<int64_t> costs = optimizer->step_costs();
  ASSERT_EQ(costs.size(), 7U);
  EXPECT_EQ(costs[3], 64 * 80 + 10 * 64 * 64 * 224 / 1000);
  EXPECT_EQ(costs[0], costs[1]) << "whichever side is longer";
  EXPECT_EQ(costs[5], 900);
}

TEST(ShardedRules, RanksWithOtherRulesAreFoundAtTheStart) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const Tensors p{parameter({4, 4}), parameter({4, 4}, at::kFloat, 2)};
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(Tensors{p[0]}, std::make_unique<optim::AdamWOptions>(0.1));
    if (group.rank() == 0)
      groups.emplace_back(Tensors{p[1]}, std::make_unique<optim::AdamOptions>(0.1));
    else
      groups.emplace_back(Tensors{p[1]}, std::make_unique<optim::AdamWOptions>(0.1));
    optim::MultiOptimizer optimizer(groups);
    const ShardedOptimizerState shards(optimizer, group);
  });
  EXPECT_THAT(errors, Each(HasSubstr("AdamW, Adam")));
}

}  // namespace
}  // namespace demi::distributed

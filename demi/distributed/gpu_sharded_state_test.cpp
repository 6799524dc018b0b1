// Sharded optimizer state on GPUs, through NCCL. Without one: tests/sharded_state_on_gpus_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/distributed/nccl.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/distributed/sharded_optimizer_state.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"

namespace demi::distributed {
namespace {

using optim::testing::Kind;
using optim::testing::kKinds;
using ::testing::Each;
using ::testing::IsEmpty;

class GpuShardedState : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!load_nccl().make) GTEST_SKIP() << load_nccl().why;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
  }
};

struct GpuRun {
  std::vector<at::Tensor> parameters;
  std::map<std::string, at::Tensor> state;
};

/// Four steps on this GPU, all ranks with the same gradients. `group`: null without sharing.
GpuRun four_steps(const Kind& kind, at::ScalarType dtype, at::Device device, ProcessGroup* group) {
  using optim::testing::parameter;
  std::vector<at::Tensor> parameters;
  for (const auto& host : {parameter({70, 50}, dtype, 1), parameter({3}, dtype, 2),
                           parameter({2, 3, 4, 2}, dtype, 3), parameter({4000}, dtype, 4)})
    parameters.push_back(host.detach().to(device).requires_grad_());
  const auto optimizer = kind.make(parameters);
  std::unique_ptr<ShardedOptimizerState> shards;
  if (group)
    shards = std::make_unique<ShardedOptimizerState>(*optimizer, *group,
                                                     ShardOptions{.bucket_bytes = 1000});
  for (int step = 0; step < 4; ++step) {
    for (const at::Tensor& p : parameters)
      p.mutable_grad() = optim::testing::gradient(p, dtype, step).to(device);
    optimizer->step();
  }
  if (shards) shards->consolidate();
  GpuRun run;
  if (!group || group->rank() == 0)
    for (const auto& [name, tensor] : optimizer->state_tensors()) run.state[name] = tensor.cpu();
  for (const at::Tensor& p : parameters) run.parameters.push_back(p.detach().cpu());
  return run;
}

void expect_the_bits_of_one_that_shares_nothing(int ranks) {
  for (const Kind& kind : kKinds) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::string(kind.name) + " " + c10::toString(dtype));
      const GpuRun alone = four_steps(kind, dtype, at::Device("cuda:0"), nullptr);
      const auto errors = demi::testing::on_ranks(ranks, [&](ProcessGroup& group) {
        const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(group.rank()));
        const GpuRun run = four_steps(kind, dtype, device, &group);
        for (std::size_t i = 0; i < alone.parameters.size(); ++i)
          EXPECT_TRUE(at::equal(run.parameters[i], alone.parameters[i])) << i;
        if (group.rank() != 0) return;
        ASSERT_EQ(run.state.size(), alone.state.size());
        for (const auto& [name, tensor] : alone.state)
          EXPECT_TRUE(at::equal(run.state.at(name), tensor)) << name;
      });
      EXPECT_THAT(errors, Each(IsEmpty()));
    }
  }
}

TEST_F(GpuShardedState, OfOneRankIsTheWholeState) { expect_the_bits_of_one_that_shares_nothing(1); }

TEST_F(GpuShardedState, HasTheBitsOfOneThatSharesNothing) {
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  if (gpus < 2) GTEST_SKIP() << "one GPU, and each rank needs its own";
  expect_the_bits_of_one_that_shares_nothing(std::min(gpus, 4));
}

}  // namespace
}  // namespace demi::distributed

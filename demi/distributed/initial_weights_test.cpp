#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DistributedOptions with_same_weights() {
  DistributedOptions options;
  options.same_weights = true;
  return options;
}

// By the last bit of one weight, on the last rank.
TEST(InitialWeights, ThatDifferAreNamedIfTheyMayNot) {
  for (const bool differ : {false, true}) {
    const auto errors = on_ranks(3, [&](ProcessGroup& group) {
      torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 2));
      const torch::NoGradGuard no_grad;
      for (auto& p : model->parameters()) p.fill_(1);
      if (differ && group.rank() == 2) model->parameters()[2][1][2] = 1 + 0x1p-23;
      const DistributedDataParallel parallel(*model, group, with_same_weights());
    });
    if (!differ) {
      EXPECT_THAT(errors, Each(IsEmpty()));
      continue;
    }
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("the initial weights"),
                                   HasSubstr("parameter 1.weight: checksum"),
                                   HasSubstr("on rank 2"), HasSubstr("as on rank 0"))));
  }
}

TEST(InitialWeights, OfBuffersToo) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::BatchNorm1d model(3);
    const torch::NoGradGuard no_grad;
    model->running_var.fill_(1 + group.rank());
    const DistributedDataParallel parallel(*model, group, with_same_weights());
  });
  EXPECT_THAT(errors, Each(HasSubstr("buffer running_var: checksum")));
}

}  // namespace
}  // namespace demi::distributed

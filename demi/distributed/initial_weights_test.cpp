#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <string>
#include <vector>

#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using weights::testing::RecordedWarnings;

DistributedOptions with_same_weights() {
  DistributedOptions options;
  options.same_weights = true;
  return options;
}

// The weights differ by the last bit of one weight, on the last rank.
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

// The second layer's weights differ on rank 1, and the first one's bias on rank 3.
TEST(InitialWeights, ThatDifferBecomeRank0sWithAWarning) {
  std::vector<std::vector<std::string>> said(4);
  for (const bool differ : {false, true}) {
    const auto errors = on_ranks(4, [&](ProcessGroup& group) {
      torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 2));
      const torch::NoGradGuard no_grad;
      for (auto& p : model->parameters()) p.fill_(1);
      if (differ && group.rank() == 1) model->parameters()[2].fill_(2);
      if (differ && group.rank() == 3) model->parameters()[1].fill_(2);
      RecordedWarnings warnings;
      const DistributedDataParallel parallel(*model, group);
      said[static_cast<std::size_t>(group.rank())] = warnings.messages();
      for (auto& p : model->parameters()) EXPECT_TRUE(p.equal(torch::ones_like(p)));
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    for (std::size_t rank = differ ? 1 : 0; rank < said.size(); ++rank)
      EXPECT_THAT(said[rank], IsEmpty()) << rank;
  }
  EXPECT_THAT(said[0],
              ElementsAre(AllOf(HasSubstr("initial weights of ranks 1, 3 differ"),
                                HasSubstr("first in parameter 0.bias; rank 0's are used"))));
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

// Of dtypes that Gloo lacks, as a table of integers or codes of FP8.
TEST(InitialWeights, OfEachDtypeBecomeRank0s) {
  const auto errors = on_ranks(2, [](ProcessGroup& group) {
    for (const auto dtype : {torch::kShort, torch::kUInt16, torch::kUInt32, torch::kUInt64,
                             torch::kFloat8_e4m3fn, torch::kFloat8_e5m2}) {
      SCOPED_TRACE(torch::toString(dtype));
      torch::nn::Linear model(3, 2);
      const auto bytes = torch::full({16}, 1 + group.rank(), torch::kByte);
      model->register_buffer("table", bytes.view(dtype));
      const DistributedDataParallel parallel(*model, group);
      EXPECT_TRUE(bytes.eq(1).all().item<bool>());
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace demi::distributed

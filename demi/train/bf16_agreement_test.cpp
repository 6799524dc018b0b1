#include "demi/train/bf16_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/bf16_products.h"
#include "demi/core/instruction_set.h"
#include "demi/optim/adamw.h"
#include "demi/optim/multi_optimizer.h"
#include "demi/optim/muon.h"
#include "demi/train/names.h"
#include "demi/train/on_ranks_testing.h"
#include "demi/train/trainer.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::train {
namespace {

using optim::MatrixProducts;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Bf16Agreement, RanksThatDifferAreCounted) {
  EXPECT_EQ(difference_of_ranks(0, 0), "");
  EXPECT_EQ(difference_of_ranks(4, 0), "");
  EXPECT_EQ(difference_of_ranks(0, 4), "");
  EXPECT_THAT(difference_of_ranks(3, 1), HasSubstr("as bf16 on 3 of 4 ranks"));
  EXPECT_THAT(difference_of_ranks(3, 1), HasSubstr("DEMI_BF16_PRODUCTS"));
}

checkpoint::Checkpoint trained(const char* precision) {
  torch::manual_seed(0);
  torch::nn::Linear plane(4, 2);
  TrainerOptions options;
  options.precision = parse_precision(precision);
  Trainer trainer(plane, options);
  const at::Tensor x = torch::randn({8, 4}), y = torch::randint(2, {8}, torch::kLong);
  checkpoint::Checkpoint saved;
  data::TensorLoader loader(x, y, {.batch_size = 4});
  Trainer::Parts parts(trainer, loader, nullptr);
  parts.advance(1);
  checkpoint::Checkpoint state = parts.checkpoint();
  for (auto* tensors : {&state.model, &state.state})
    for (auto& [name, tensor] : *tensors) tensor = tensor.clone();
  return state;
}

int warnings_of_resuming(const checkpoint::Checkpoint& saved, const char* precision) {
  const weights::testing::RecordedWarnings warnings;
  torch::nn::Linear plane(4, 2);
  TrainerOptions options;
  options.precision = parse_precision(precision);
  Trainer(plane, options).resume(saved);
  return warnings.holding("DEMI_BF16_PRODUCTS=");
}

TEST(Bf16Agreement, ARunThatIsResumedInTheOtherWayIsWarned) {
  checkpoint::Checkpoint saved = trained("bf16");
  ASSERT_EQ(saved.text.at(kBf16ProductsText), name_of(bf16_products()));
  EXPECT_EQ(warnings_of_resuming(saved, "bf16"), 0) << "the same way";
  saved.text[kBf16ProductsText] = bf16_products() == Bf16Products::bf16 ? "fp32" : "bf16";
  EXPECT_EQ(warnings_of_resuming(saved, "bf16"), 1);
  saved.text.erase(kBf16ProductsText);
  EXPECT_EQ(warnings_of_resuming(saved, "bf16"), 0) << "of an older demi";
}

/// A Linear(4, 2) by Muon, or by AdamW where there are no products.
TrainerOptions by_muon(const torch::nn::Linear& plane,
                       const std::vector<MatrixProducts>& products) {
  TrainerOptions options;
  options.precision = parse_precision("fp32");
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{plane->bias}, std::make_unique<optim::AdamWOptions>(0.01));
  for (std::size_t i = 0; i < products.size(); ++i) {
    const std::vector<at::Tensor> one{i == 0 ? plane->weight
                                             : torch::ones({2, 2}).requires_grad_()};
    groups.emplace_back(
        one, std::make_unique<optim::MuonOptions>(optim::MuonOptions(0.01).products(products[i])));
  }
  options.optimizers = {std::make_shared<optim::MultiOptimizer>(groups)};
  return options;
}

checkpoint::Checkpoint state_of_muon(const std::vector<MatrixProducts>& products) {
  const torch::nn::Linear plane(4, 2);
  Trainer trainer(plane, by_muon(plane, products));
  const data::TensorLoader loader(torch::ones({8, 4}), torch::zeros({8}, torch::kLong),
                                  {.batch_size = 4});
  return Trainer::Parts(trainer, loader, nullptr).checkpoint();
}

// optim::MatrixProducts: automatic is bf16 on a CPU with bf16 instructions that are the faster way.
TEST(Bf16Agreement, ARunInFp32RecordsWhatMuonsProductsAreComputedIn) {
  const auto products = [](const std::vector<MatrixProducts>& given) {
    const auto text = state_of_muon(given).text;
    EXPECT_FALSE(text.contains(kBf16ProductsText)) << "it has no region in bf16";
    const auto found = text.find(kMatrixProductsText);
    return found == text.end() ? "none" : found->second;
  };
  EXPECT_EQ(products({}), "none");
  EXPECT_EQ(products({MatrixProducts::bf16}), "bf16");
  EXPECT_EQ(products({MatrixProducts::fp32}), "fp32");
  EXPECT_EQ(products({MatrixProducts::fp32, MatrixProducts::bf16}), "bf16, fp32");
  const bool has_bf16 = has_bf16_hardware() && bf16_products() == Bf16Products::bf16;
  EXPECT_EQ(products({MatrixProducts::automatic}), has_bf16 ? "bf16" : "fp32");
}

TEST(Bf16Agreement, ARunWithOtherProductsOfMuonThanTheOneResumedIsWarned) {
  checkpoint::Checkpoint saved = state_of_muon({MatrixProducts::bf16});
  const auto warnings = [&](MatrixProducts products) {
    const weights::testing::RecordedWarnings recorded;
    const torch::nn::Linear plane(4, 2);
    Trainer(plane, by_muon(plane, {products})).resume(saved);
    return recorded.holding("computed Muon's products in bf16, and this one computes them in fp32");
  };
  EXPECT_EQ(warnings(MatrixProducts::bf16), 0);
  EXPECT_EQ(warnings(MatrixProducts::fp32), 1);
  saved.text.erase(kMatrixProductsText);
  EXPECT_EQ(warnings(MatrixProducts::fp32), 0) << "of an older demi";
}

using Bf16AgreementOnRanks = testing::OnRanks;

// Each rank multiplies for itself, unless they share the optimizer's state.
TEST_F(Bf16AgreementOnRanks, WhoseMuonsMultiplyInOtherDtypesAreWarned) {
  const auto warnings = [](MatrixProducts of_second, bool shared) {
    std::vector<std::string> messages;
    const auto errors = demi::testing::on_ranks(2, [&](distributed::ProcessGroup& group) {
      const bool is_first = group.rank() == 0;
      const torch::nn::Linear plane(4, 2);
      testing::set_weights(*plane);
      TrainerOptions options = by_muon(plane, {is_first ? MatrixProducts::fp32 : of_second});
      options.group = testing::shared_group(group);
      options.distributed.compare_weights = false;
      options.shard_optimizer = shared;
      options.epochs = 1;
      Trainer trainer(plane, options);
      const weights::testing::RecordedWarnings recorded;
      trainer.fit(data::TensorLoader(torch::ones({8, 4}), torch::zeros({8}, torch::kLong),
                                     {.batch_size = 4, .rank = group.rank(), .world_size = 2}));
      if (is_first) messages = recorded.messages();
      EXPECT_TRUE(is_first || recorded.messages().empty()) << "rank 0 warns for all";
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    return messages;
  };
  EXPECT_THAT(warnings(MatrixProducts::fp32, false), IsEmpty());
  const auto apart = warnings(MatrixProducts::bf16, false);
  ASSERT_EQ(apart.size(), 1U);
  EXPECT_THAT(apart[0], AllOf(HasSubstr("fp32 on rank 0"), HasSubstr("on 1 of 2 ranks"),
                              HasSubstr("drift apart"), HasSubstr("shard_optimizer")));
  const auto together = warnings(MatrixProducts::bf16, true);
  ASSERT_EQ(together.size(), 1U);
  EXPECT_THAT(together[0], AllOf(HasSubstr("which rank computes"), Not(HasSubstr("drift"))));
}

TEST(Bf16Agreement, OtherPrecisionsHaveNoWay) {
  for (const char* precision : {"fp32", "fp16", "bf16-true"})
    EXPECT_FALSE(trained(precision).text.contains(kBf16ProductsText)) << precision;
}

}  // namespace
}  // namespace demi::train

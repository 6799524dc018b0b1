#include "demi/train/bf16_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/core/bf16_products.h"
#include "demi/train/names.h"
#include "demi/train/trainer.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::train {
namespace {

using ::testing::HasSubstr;

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

TEST(Bf16Agreement, OtherPrecisionsHaveNoWay) {
  for (const char* precision : {"fp32", "fp16", "bf16-true"})
    EXPECT_FALSE(trained(precision).text.contains(kBf16ProductsText)) << precision;
}

}  // namespace
}  // namespace demi::train

#include "lab/doctor/dimensions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/settings/recipe.h"

namespace demi::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> words(const ModelCheck& check) {
  std::vector<std::string> all;
  for (const Dimension& one : check.dimensions)
    all.push_back(one.module + "." + one.name + " " + std::to_string(one.value) + " " +
                  std::to_string(one.next));
  return all;
}

TEST(Dimensions, ThatAreMultiplesOf8AreFriendly) {
  const torch::nn::Sequential model(torch::nn::Linear(64, 1024), torch::nn::Linear(1024, 8));
  const ModelCheck check = check_dimensions(*model, {.examples = 32});
  EXPECT_THAT(check.dimensions, IsEmpty());
  EXPECT_EQ(check.products, 2);
}

TEST(Dimensions, OthersAreNamedWithTheNextMultiple) {
  const torch::nn::Sequential model(torch::nn::Linear(1001, 64), torch::nn::Linear(64, 10));
  const ModelCheck check = check_dimensions(*model, {.examples = 100});
  EXPECT_THAT(words(check), ElementsAre("0.in_features 1001 1008", "1.out_features 10 16",
                                        "0.batch_size 100 104"));
  const Dimension& out = check.dimensions[1];
  EXPECT_EQ((std::vector{out.m, out.k, out.n}), (std::vector<int64_t>{100, 64, 10}));
  EXPECT_EQ((std::vector{out.next_m, out.next_k, out.next_n}), (std::vector<int64_t>{100, 64, 16}));
}

// A binary classifier has one output, and needs no other seven.
TEST(Dimensions, FewOutputsAreTheTasks) {
  const torch::nn::Sequential one(torch::nn::Linear(64, 64), torch::nn::Linear(64, 1));
  EXPECT_THAT(check_dimensions(*one, {.examples = 8}).dimensions, IsEmpty());
  const torch::nn::Sequential hidden(torch::nn::Linear(64, 1), torch::nn::Linear(1, 8));
  EXPECT_THAT(words(check_dimensions(*hidden, {.examples = 8})),
              ElementsAre("0.out_features 1 8", "1.in_features 1 8"));
}

// An LSTM's products: input by 4 gates, hidden by 4 gates.
TEST(Dimensions, OfAnLstmAreItsInputAndItsHiddenSize) {
  const torch::nn::LSTM lstm(torch::nn::LSTMOptions(100, 250));
  const ModelCheck check = check_dimensions(*lstm, {.examples = 64});
  EXPECT_EQ(check.products, 2);
  EXPECT_THAT(words(check),
              ElementsAre(".input_size 100 104", ".hidden_size 250 256", ".hidden_size 250 256"));
  EXPECT_EQ(check.dimensions[0].n, 1000);
  EXPECT_EQ(check.dimensions[1].next_n, 1024);
}

// A language model's layers have a row for each token: 3 x 100 rows, and 4 x 100 is the next
// multiple of 8. An LSTM has the examples' rows in each of its steps.
TEST(Dimensions, RowsAreTheTokensOfTheBatch) {
  const torch::nn::Sequential model(torch::nn::Linear(64, 65));
  const ModelCheck check = check_dimensions(*model, {.examples = 3, .tokens = 100});
  EXPECT_EQ(check.batch_size, 3);
  EXPECT_THAT(words(check), ElementsAre("0.out_features 65 72", "0.batch_size 3 4"));
  EXPECT_EQ(check.dimensions[0].m, 300);
  EXPECT_EQ(check.dimensions[1].next_m, 400);
  EXPECT_EQ(check.dimensions[0].flops(), 3 * 2.0 * 300 * 64 * 65);
  EXPECT_THAT(words(check_dimensions(*model, {.examples = 3, .tokens = 64})),
              ElementsAre("0.out_features 65 72"));
  const torch::nn::LSTM lstm(torch::nn::LSTMOptions(100, 64));
  const ModelCheck texts = check_dimensions(*lstm, {.examples = 16, .words = 256});
  ASSERT_THAT(words(texts), ElementsAre(".input_size 100 104"));
  EXPECT_EQ(texts.dimensions[0].m, 16);
  EXPECT_EQ(texts.dimensions[0].flops(), 3 * 2.0 * 256 * 16 * 100 * 4 * 64);
}

TEST(Dimensions, ABatchOfARecipeHasItsTokens) {
  const settings::Config& config = settings::find_recipe("gpt2").config;
  const Batch batch = batch_of(config, config.batch_size);
  EXPECT_EQ(batch.examples, 16);
  EXPECT_EQ(batch.tokens, 1024);
  EXPECT_EQ(batch.words, 1);
  settings::Config texts = settings::find_recipe("imdb-lstm").config;
  EXPECT_EQ(batch_of(texts, 32).words, 1) << "of any length";
  texts.max_length = 256;
  EXPECT_EQ(batch_of(texts, 32).words, 256);
  EXPECT_EQ(batch_of(texts, 32).tokens, 1);
  EXPECT_EQ(batch_of(texts, 32).examples, 32);
}

// NVIDIA's guide of mixed precision: since cuDNN 7.3 channels need no multiples of 8.
TEST(Dimensions, OfConvolutionsAreExempt) {
  const torch::nn::Sequential model(torch::nn::Conv2d(3, 33, 3), torch::nn::Linear(8, 8));
  const ModelCheck check = check_dimensions(*model, {.examples = 8});
  EXPECT_EQ(check.convolutions, 1);
  EXPECT_THAT(check.dimensions, IsEmpty());
}

// An LSTM of two layers, 3 to 4 and 4 to 4, and a last layer of 8 by 2.
TEST(Dimensions, OfAFileAreThoseOfItsWeights) {
  const std::string file = (source_dir() / "tests/fixtures/imported/recurrent.pt2").string();
  const ModelCheck check = check_recipe(file);
  EXPECT_EQ(check.model, file);
  EXPECT_EQ(check.products, 5);
  EXPECT_THAT(words(check),
              ElementsAre("lstm.input_size 3 8", "lstm.hidden_size 4 8", "lstm.hidden_size 4 8",
                          "lstm.hidden_size 4 8", "lstm.hidden_size 4 8"));
  EXPECT_THAT(
      check_recipe((source_dir() / "tests/fixtures/imported/pictures.pt2").string()).convolutions,
      1);
}

TEST(Dimensions, EveryRecipeCanBeChecked) {
  for (const settings::Recipe& recipe : settings::recipes()) {
    const ModelCheck check = check_recipe(recipe.name);
    EXPECT_EQ(check.model, recipe.config.model);
    EXPECT_GE(check.products, 1) << recipe.name;
  }
  EXPECT_THAT(check_recipe("mlp").dimensions, IsEmpty());
  EXPECT_THAT(words(check_recipe("cifar10-resnet18")),
              ElementsAre("classifier.out_features 10 16"));
  EXPECT_THAT(check_recipe("synthetic-resnet50").dimensions, IsEmpty()) << "1000 classes";
  EXPECT_THROW(check_recipe("mlpp"), UsageError);
}

TEST(Dimensions, MeasuredOnesHaveASpeedup) {
  const torch::nn::Sequential model(torch::nn::Linear(65, 64));
  ModelCheck check = check_dimensions(*model, {.examples = 8});
  measure(check, "fp32", c10::kCPU);
  ASSERT_EQ(check.dimensions.size(), 1U);
  EXPECT_GT(check.dimensions[0].speedup, 0);
}

}  // namespace
}  // namespace demi::doctor

#include "demi/monitor/what_if.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "demi/monitor/what_if_testing.h"
#include "demi/optim/sgd.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::monitor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using train::testing::Rows;
using namespace what_if_testing;

TEST(WhatIf, ASoundModelNeedsNothing) {
  const WhatIfResult result = ask(Plain(), training_rows());
  EXPECT_THAT(result.cures, IsEmpty());
  EXPECT_EQ(result.policy_text(), "");
  EXPECT_EQ(result.batches, 6);
  EXPECT_EQ(result.first_step, 1);
  EXPECT_EQ(result.last_step, 6);
}

// Compared with the same products by hand.
TEST(WhatIf, CountsWhatEachTensorWouldLose) {
  Plain model(1e5);
  const at::Tensor x = input_rows().slice(0, 0, 4);
  at::Tensor hidden;
  {
    const at::NoGradGuard no_grad;
    hidden = model->big->forward(x);
  }
  const WhatIfResult result = ask(model, Rows(x, x.sum(1, true), 4));
  const TensorFate* output = find(result, "big", "addmm", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, hidden.numel());
  EXPECT_EQ(output->loss.overflowed, hidden.abs().ge(65520).sum().item<int64_t>());
  EXPECT_EQ(output->loss.greatest, hidden.abs().max().item<double>());
  EXPECT_EQ(output->loss.first_overflow, 1);
  EXPECT_EQ(output->from, "");
  const TensorFate* relu = find(result, "big", "relu", TensorPlace::output);
  ASSERT_TRUE(relu);
  EXPECT_EQ(relu->loss.overflowed, hidden.ge(65520).sum().item<int64_t>());
  EXPECT_EQ(relu->loss.zeros, hidden.le(0).sum().item<int64_t>());
  EXPECT_EQ(relu->from, "addmm in big");
  const TensorFate* weights = find(result, "small", "addmm", TensorPlace::weights);
  ASSERT_TRUE(weights);
  EXPECT_EQ(weights->loss.elements, kFeatures * kFeatures + kFeatures);
  EXPECT_EQ(result.tensors.front().layer, "big");  // made there: the worst
  EXPECT_EQ(result.tensors.front().from, "");
}

TEST(WhatIf, NamesTheLayersThatMakeAndCastWhatIsTooLarge) {
  const WhatIfResult result = ask(Plain(1e6), training_rows());
  EXPECT_THAT(names_of(result.cures), ElementsAre("part big", "part small"));
  EXPECT_THAT(result.fp32_parts(), ElementsAre("big", "small"));
  EXPECT_THAT(result.policy.fp32_parts(), ElementsAre("big", "small"));
  EXPECT_THAT(result.policy_text(), HasSubstr("\npart big fp32\n"));
  EXPECT_THAT(ask(Plain(1e6), training_rows(), {.format = torch::kBFloat16}).cures, IsEmpty());
}

// The same training in FP32, in plain fp16, and in fp16 with the policy as it is read from a file.
TEST(WhatIf, ItsPolicyTrainsToTheLossOfFp32) {
  constexpr double kFactor = 1e6;
  const auto file = std::filesystem::temp_directory_path() / "demi-what-if-policy.txt";
  std::ofstream(file) << ask(Plain(kFactor), training_rows()).policy_text();
  const OpPolicy policy = OpPolicy::from_file(file);
  std::filesystem::remove(file);
  const auto losses = [&](const char* precision, const OpPolicy& with) {
    Plain model(kFactor);
    demi::apply(with, *model);
    train::TrainerOptions options = options_of(*model, precision);
    options.op_policy = with;
    options.loss_scale = {LossScale::Kind::fixed, 128};
    options.epochs = 3;
    const train::History history =
        train::Trainer(train::network(model), options).fit(training_rows());
    std::vector<double> all;
    for (const auto& step : history.steps) all.push_back(step.skipped ? NAN : step.loss);
    return all;
  };
  const std::vector<double> exact = losses("fp32", {}), low = losses("fp16", policy);
  for (const double loss : losses("fp16", {})) EXPECT_FALSE(std::isfinite(loss));
  ASSERT_EQ(exact.size(), low.size());
  ASSERT_EQ(exact.size(), 18u);
  EXPECT_LT(exact[12], exact[0]) << "the same batch, two epochs later";
  // The last layer alone is in fp16: its input, weights and output are rounded, 2^-11 each. With
  // d = |output - target| the loss is off by 2 d 3 |output| 2^-11 at first order.
  for (std::size_t i = 0; i < exact.size(); ++i)
    EXPECT_NEAR(low[i], exact[i], 12 * std::ldexp(1.0, -11) * exact[i]) << i;
}

TEST(WhatIf, AnOpWithoutWeightsGetsALineOfItsOwn) {
  Plain model;
  model->between = [](const at::Tensor& x) { return (x * 1000).square() * 1e-6; };
  const WhatIfResult result = ask(model, training_rows());
  EXPECT_THAT(names_of(result.cures), ElementsAre("op square"));
  EXPECT_THAT(result.fp32_parts(), IsEmpty());
  EXPECT_THAT(result.policy_text(), HasSubstr("square fp32  # what-if: op square: the output of "
                                              "square in big reaches "));
}

TEST(WhatIf, AnOpThatWritesToItsArgumentIsCuredWhereThatIsMade) {
  Plain model;
  model->between = [](at::Tensor x) { return x.mul_(1e6).mul_(1e-6).relu(); };
  EXPECT_THAT(names_of(ask(model, training_rows()).cures), ElementsAre("part big"));
}

TEST(WhatIf, AnInputThatIsTooLargeIsNamedAsTheBatchs) {
  const WhatIfResult result = ask(Plain(), Rows(input_rows() * 1e5, input_rows().sum(1, true), 4));
  const TensorFate* input = find(result, "big", "addmm", TensorPlace::input);
  ASSERT_TRUE(input);
  EXPECT_EQ(input->from, "batch input");
  EXPECT_EQ(input->loss.overflowed, (input_rows() * 1e5).abs().ge(65520).sum().item<int64_t>());
  EXPECT_EQ(names_of(result.cures).front(), "part big");
}

TEST(WhatIf, PartsAndOpsThatAreInFp32AlreadyCountAsSuch) {
  WhatIfOptions options;
  options.policy.keep_part_in_fp32("big").keep_part_in_fp32("small");
  WhatIfResult result = ask(Plain(1e6), training_rows(), options);
  EXPECT_THAT(result.cures, IsEmpty());
  EXPECT_FALSE(find(result, "big", "addmm", TensorPlace::output));
  EXPECT_TRUE(find(result, "head", "addmm", TensorPlace::output));
  Plain model;
  model->between = [](const at::Tensor& x) { return (x * 1000).square() * 1e-6; };
  options.policy = OpPolicy().set("square", OpCategory::fp32);
  result = ask(model, training_rows(), options);
  EXPECT_THAT(result.cures, IsEmpty());
  EXPECT_EQ(result.policy.changes().size(), 1u);
}

// A loss of 1e-7 makes gradients that fp16 flushes, and the scale brings back.
TEST(WhatIf, FlushedGradientsAreThoseTimesTheLossScale) {
  const auto ask_with = [](double scale, bool dynamic) {
    Plain model;
    train::TrainerOptions with = options_of(*model);
    with.loss = train::LossFunction{train::Loss::mse, 1e-8};
    train::Trainer trainer(train::network(model), with);
    const auto what_if =
        std::make_shared<WhatIf>(WhatIfOptions{.loss_scale = scale, .dynamic_scale = dynamic});
    trainer.add(what_if);
    trainer.fit(training_rows());
    return what_if->result();
  };
  const WhatIfResult plain = ask_with(1, false), scaled = ask_with(65536, true);
  EXPECT_THAT(names_of(plain.cures), UnorderedElementsAre("part big", "part small", "part head"));
  EXPECT_THAT(scaled.cures, IsEmpty());
  const TensorFate* flushed = find(plain, "big", "addmm", TensorPlace::weight_gradient);
  ASSERT_TRUE(flushed);
  EXPECT_EQ(flushed->loss.flushed + flushed->loss.zeros, flushed->loss.elements);
  EXPECT_EQ(flushed->loss.lost(), 1);
  EXPECT_EQ(scaled.least_scale, 65536);
  EXPECT_EQ(scaled.greatest_scale, 65536);
}

TEST(WhatIf, TheScaleIsHalvedForGradientsThatItMakesTooLarge) {
  const WhatIfResult dynamic = ask(Plain(), training_rows(), {.loss_scale = std::ldexp(1.0, 40)});
  EXPECT_THAT(dynamic.cures, IsEmpty());
  EXPECT_LT(dynamic.greatest_scale, std::ldexp(1.0, 40));
  EXPECT_GT(dynamic.least_scale, 1);
  const WhatIfResult fixed =
      ask(Plain(), training_rows(), {.loss_scale = std::ldexp(1.0, 40), .dynamic_scale = false});
  EXPECT_THAT(names_of(fixed.cures), UnorderedElementsAre("part big", "part small", "part head"));
  // 2^40 times the gradient is what overflows, and the gradient itself is far below.
  for (const Cure& cure : fixed.cures) {
    EXPECT_GT(cure.loss.greatest, 65504) << cure.name;
    EXPECT_LT(cure.loss.greatest * 0x1p-40, 65504) << cure.name;
    EXPECT_THAT(to_string(cure, torch::kHalf), HasSubstr(" with the loss scale, beyond fp16"));
  }
}

// Twice as many tensors, the same steps.
TEST(WhatIf, BatchesOfAWindowCountTogether) {
  const WhatIfResult one = ask(Plain(), training_rows()),
                     two = ask(Plain(), training_rows(), {}, 2);
  EXPECT_EQ(two.batches, 6);
  EXPECT_EQ(two.last_step, 3);
  const auto elements = [](const WhatIfResult& result, TensorPlace place) {
    return find(result, "big", "addmm", place)->loss.elements;
  };
  EXPECT_EQ(elements(two, TensorPlace::output), elements(one, TensorPlace::output));
  EXPECT_EQ(2 * elements(two, TensorPlace::weight_gradient),
            elements(one, TensorPlace::weight_gradient));
}

// The loss of the third of six batches is infinite in FP32, which no format cures.
TEST(WhatIf, ARunThatDivergesByItselfHasNoCures) {
  at::Tensor targets = input_rows().sum(1, true);
  targets[9] = std::numeric_limits<float>::infinity();
  const Rows rows{input_rows(), targets, 4};
  const WhatIfResult result = ask(Plain(1e6), rows), sound = ask(Plain(1e6), training_rows());
  EXPECT_EQ(result.diverged, 3);
  EXPECT_EQ(result.batches, 2);
  EXPECT_EQ(result.last_step, 2);
  const TensorFate* output = find(result, "big", "addmm", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, 2 * 4 * kFeatures) << "of two batches of four rows";
  EXPECT_THAT(result.cures, IsEmpty());
  EXPECT_FALSE(sound.diverged);
  EXPECT_FALSE(sound.cures.empty()) << "its outputs leave the range of fp16";
  at::Tensor from_the_first = input_rows().sum(1, true);
  from_the_first[0] = std::numeric_limits<float>::infinity();
  const WhatIfResult none = ask(Plain(1e6), Rows(input_rows(), from_the_first, 4));
  EXPECT_EQ(none.batches, 0);
  EXPECT_THAT(none.tensors, IsEmpty());
  EXPECT_EQ(none.least_scale, 1);
}

TEST(WhatIf, TheRunTrainsAsWithoutIt) {
  const auto weights = [](bool asks) {
    Plain model;
    model->between = [](const at::Tensor& x) { return at::dropout(x, 0.5, true).relu_(); };
    torch::manual_seed(9);
    train::Trainer trainer(train::network(model), options_of(*model));
    if (asks) trainer.add(std::make_shared<WhatIf>());
    trainer.fit(training_rows());
    return torch::nn::utils::parameters_to_vector(model->parameters());
  };
  EXPECT_TRUE(at::equal(weights(true), weights(false)));
}

TEST(WhatIf, RefusesWhatItCannotAsk) {
  EXPECT_THROW(WhatIf({.format = torch::kFloat}), UsageError);
  EXPECT_THROW(WhatIf({.loss_scale = 0}), UsageError);
  for (const char* precision : {"bf16", "bf16-true", "fp64"}) {
    Plain model;
    train::Trainer trainer(train::network(model), options_of(*model, precision));
    trainer.add(std::make_shared<WhatIf>());
    EXPECT_THROW(trainer.fit(training_rows()), UsageError) << precision;
  }
}

struct MixtureImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  at::Tensor gain;
  MixtureImpl() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(kFeatures, kFeatures));
    second = register_module("second", torch::nn::Linear(kFeatures, 1));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(kFeatures));
    layer_norm = register_module("layer_norm",
                                 torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})));
    gain = register_parameter("gain", at::ones({kFeatures}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = batch_norm->forward(first->forward(x));             // 16 bits
    y = y + at::dropout(y.sigmoid(), 0.5, true);                       // 16 bits
    at::Tensor wide = layer_norm->forward(y).tanh() * gain;            // FP32 from the product on
    wide = at::cat({wide.exp(), y.neg()}, 1).narrow(1, 0, kFeatures);  // the widest: FP32
    return second->forward(wide.cos()) + y.view({-1}).abs().sum();
  }
};
TORCH_MODULE(Mixture);

TEST(WhatIf, FollowsWhatARegionComputesIn16Bits) {
  Mixture model;
  const std::set<std::string> in_region =
      ops_in_16_bits([&] { return model->forward(input_rows().slice(0, 0, 4)); });
  const WhatIfResult result = ask(model, Rows(input_rows(), input_rows().sum(1, true), 4));
  std::set<std::string> reported;
  for (const TensorFate& fate : result.tensors)
    if (fate.place == TensorPlace::output) reported.insert(fate.op.substr(0, fate.op.find('.')));
  for (const char* op : {"addmm", "batch_norm", "sigmoid", "dropout", "add", "layer_norm", "tanh",
                         "neg", "abs", "sum"}) {
    EXPECT_EQ(reported.contains(op), in_region.contains(op)) << op;
    EXPECT_TRUE(reported.contains(op)) << op;
  }
  for (const char* op : {"mul", "exp", "cat", "cos"}) {
    EXPECT_FALSE(in_region.contains(op)) << op;
    EXPECT_FALSE(reported.contains(op)) << op;
  }
}

// docs/reference/monitor.md shows the file. All numbers are exact, whatever the processor.
TEST(WhatIf, ThePageShowsThePolicyFile) {
  Plain model;
  {
    const at::NoGradGuard no_grad;
    for (const auto& p : model->named_parameters()) p.value().fill_(0);
    model->big->weight.fill_(0.5);
    model->small->weight.fill_(1.25e-6);
    model->head->weight.fill_(1);
  }
  model->between = [](const at::Tensor& x) { return x.square(); };
  const at::Tensor x = at::full({4, kFeatures}, 100.0F);
  const std::string text = ask(model, Rows(x, at::zeros({4, 1}), 4)).policy_text();
  std::ifstream page(source_dir() / "docs/reference/monitor.md");
  std::string shown;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "<!-- end of what-if -->") inside = false;
    if (inside && line.size() > 4) shown += line.substr(4) + "\n";
    if (line == "<!-- what-if -->") inside = true;
  }
  EXPECT_EQ(shown, text);
}

TEST(WhatIf, EmbeddingsAreCastWhereAProductReadsThem) {
  torch::manual_seed(8);
  torch::nn::Sequential model(torch::nn::Embedding(5, kFeatures), torch::nn::Linear(kFeatures, 1));
  const WhatIfResult result = ask(model, Rows(at::arange(12).remainder(5), at::ones({12, 1}), 4));
  EXPECT_FALSE(find(result, "0", "embedding", TensorPlace::output));
  const TensorFate* input = find(result, "1", "addmm", TensorPlace::input);
  ASSERT_TRUE(input);
  EXPECT_EQ(input->loss.elements, 12 * kFeatures);
  ASSERT_TRUE(find(result, "1", "addmm", TensorPlace::input_gradient));
}

// Loss and output together: what is computed of the output belongs to the region.
TEST(WhatIf, LossesOfTheUsersAreInTheRegion) {
  Plain model;
  train::TrainerOptions options = options_of(*model);
  options.losses = [](const train::Network& network, const data::Batch& batch) {
    return std::vector<at::Tensor>{(network.forward(batch) * 1e6).square().mean() * 1e-12};
  };
  train::Trainer trainer(train::network(model), options);
  const auto what_if = std::make_shared<WhatIf>();
  trainer.add(what_if);
  trainer.fit(training_rows());
  const auto names = names_of(what_if->result().cures);
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "op mul.Scalar");
}

}  // namespace
}  // namespace demi::monitor

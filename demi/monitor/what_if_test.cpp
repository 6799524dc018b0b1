#include "demi/monitor/what_if.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
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
#include "demi/monitor/layers.h"
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

constexpr int64_t kFeatures = 8;

// Three layers, of which `big` and `small` can have weights that cancel each other: the model's
// output is that of ordinary weights, but between the two the numbers are `factor` times as large,
// and the gradient of `small` as well.
struct PlainImpl : torch::nn::Module {
  torch::nn::Linear big{nullptr}, small{nullptr}, head{nullptr};
  std::function<at::Tensor(const at::Tensor&)> between = [](const at::Tensor& x) {
    return x.relu();
  };
  explicit PlainImpl(double factor = 1) {
    torch::manual_seed(5);
    big = register_module("big", torch::nn::Linear(kFeatures, kFeatures));
    small = register_module("small", torch::nn::Linear(kFeatures, kFeatures));
    head = register_module("head", torch::nn::Linear(kFeatures, 1));
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : big->parameters()) p.mul_(factor);
    small->weight.mul_(1 / factor);
  }
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(small->forward(between(big->forward(x))).relu());
  }
};
TORCH_MODULE(Plain);

const at::Tensor& input_rows() {
  static const at::Tensor x = [] {
    torch::manual_seed(6);
    return at::randn({24, kFeatures});
  }();
  return x;
}

Rows training_rows() { return {input_rows(), input_rows().sum(1, true), 4}; }

train::TrainerOptions options_of(torch::nn::Module& model, const char* precision = "fp32") {
  train::TrainerOptions options;
  options.precision = train::parse_precision(precision);
  options.loss = train::Loss::mse;
  options.optimizers = {std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions(2e-14))};
  return options;
}

template <class Holder>
WhatIfResult ask(Holder model, const data::Loader& loader, WhatIfOptions options = {},
                 int64_t accumulate = 1) {
  train::TrainerOptions with = options_of(*model);
  with.accumulate = accumulate;
  train::Trainer trainer(train::network(model), with);
  const auto what_if = std::make_shared<WhatIf>(std::move(options));
  trainer.add(what_if);
  trainer.fit(loader);
  return what_if->result();
}

std::vector<std::string> names_of(const std::vector<Cure>& cures) {
  std::vector<std::string> names;
  for (const Cure& cure : cures)
    names.push_back((cure.kind == Cure::Kind::part ? "part " : "op ") + cure.name);
  return names;
}

const TensorFate* find(const WhatIfResult& result, const std::string& layer, const std::string& op,
                       TensorPlace place) {
  for (const TensorFate& fate : result.tensors)
    if (fate.layer == layer && fate.op == op && fate.place == place) return &fate;
  return nullptr;
}

TEST(WhatIf, ASoundModelNeedsNothing) {
  const WhatIfResult result = ask(Plain(), training_rows());
  EXPECT_THAT(result.cures, IsEmpty());
  EXPECT_EQ(result.policy_text(), "");
  EXPECT_EQ(result.batches, 6);
  EXPECT_EQ(result.first_step, 1);
  EXPECT_EQ(result.last_step, 6);
}

// By hand: the same products, once more.
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
    options.loss_scale = {train::LossScale::Kind::fixed, 128};
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

// What LibTorch's dispatcher makes of the same forward pass in a region, against what is said of
// FP32. By op: the names of those whose output is 16 bits.
std::set<std::string> ops_in_16_bits(const std::function<at::Tensor()>& forward) {
  static thread_local std::set<std::string>* seen = nullptr;
  static thread_local int depth = 0;
  std::set<std::string> names;
  seen = &names;
  depth = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
            ++depth;
            return nullptr;
          },
          [](const at::RecordFunction& op, at::ObserverContext*) {
            if (--depth > 0) return;
            const std::string name = std::string(op.name()).substr(6);
            for_each_tensor(op.outputs(), [&](const at::Tensor& tensor) {
              if (tensor.scalar_type() == torch::kHalf) seen->insert(name);
            });
          })
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  {
    const Autocast region(torch::kCPU, torch::kHalf);
    forward();
  }
  at::removeCallback(handle);
  return names;
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
  std::set<std::string> told;
  for (const TensorFate& fate : result.tensors)
    if (fate.place == TensorPlace::output) told.insert(fate.op.substr(0, fate.op.find('.')));
  for (const char* op : {"addmm", "batch_norm", "sigmoid", "dropout", "add", "layer_norm", "tanh",
                         "neg", "abs", "sum"}) {
    EXPECT_EQ(told.contains(op), in_region.contains(op)) << op;
    EXPECT_TRUE(told.contains(op)) << op;
  }
  for (const char* op : {"mul", "exp", "cat", "cos"}) {
    EXPECT_FALSE(in_region.contains(op)) << op;
    EXPECT_FALSE(told.contains(op)) << op;
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

// The first layer hands `x` on, exactly: powers of two, which the tests below follow by hand.
Plain handing_on(const std::function<at::Tensor(const at::Tensor&)>& between) {
  Plain model;
  const at::NoGradGuard no_grad;
  model->big->weight.copy_(at::eye(kFeatures));
  model->big->bias.zero_();
  model->between = between;
  return model;
}

Rows rows_of(const at::Tensor& x) { return {x, at::zeros({x.size(0), 1}), 4}; }

at::Tensor filled(double number) { return at::full({4, kFeatures}, number, torch::kFloat); }

TEST(WhatIf, TheGreatestIsThatOfAllBatches) {
  const at::Tensor x = at::cat({filled(2), filled(-std::ldexp(1, 18)), filled(8)});
  const WhatIfResult result = ask(handing_on([](const at::Tensor& y) { return y; }), rows_of(x));
  for (const auto place : {TensorPlace::input, TensorPlace::output}) {
    const TensorFate* fate = find(result, "big", "addmm", place);
    ASSERT_TRUE(fate);
    EXPECT_EQ(fate->loss.greatest, std::ldexp(1, 18)) << "negative, in the second of three batches";
    EXPECT_EQ(fate->loss.least_exponent, 1);
    EXPECT_EQ(fate->loss.overflowed, 4 * kFeatures);
    EXPECT_EQ(fate->loss.first_overflow, 2);
  }
}

// A mask of minus infinity, as attention has it: Inf was there before, and is no overflow.
TEST(WhatIf, BesideInfTheGreatestNumberIsKnownToItsPowerOfTwo) {
  const at::Tensor hidden = at::arange(kFeatures).eq(0);
  const auto greatest = [&](double number) {
    const Plain model = handing_on([&](at::Tensor y) {
      const at::Tensor masked = y.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
      return masked.softmax(1);
    });
    const WhatIfResult result = ask(model, rows_of(filled(number)));
    const TensorFate* fate = find(result, "big", "masked_fill_.Scalar", TensorPlace::output);
    EXPECT_TRUE(fate);
    EXPECT_EQ(fate->loss.overflowed, number > 65504 ? 4 * (kFeatures - 1) : 0);
    return fate->loss.greatest;
  };
  EXPECT_EQ(greatest(1536), 1024);
  EXPECT_EQ(greatest(3 * std::ldexp(1, 20)), std::ldexp(1, 21));
  EXPECT_EQ(greatest(1.5 * std::ldexp(1, -30)), std::ldexp(1, -30));
  EXPECT_EQ(greatest(0), 0);
}

// empty_like gives memory, whose numbers another op writes.
TEST(WhatIf, MemoryIsCountedWhenItHasNumbers) {
  const Plain model = handing_on([](const at::Tensor& y) {
    const at::Tensor again = at::empty_like(y).copy_(y);
    return y.new_empty(y.sizes()).copy_(again).relu();
  });
  const WhatIfResult result = ask(model, rows_of(filled(std::ldexp(1, 17))));
  for (const TensorFate& fate : result.tensors)
    EXPECT_THAT(fate.op, ::testing::Not(HasSubstr("empty")));
  for (const char* op : {"copy_", "relu"}) {
    const TensorFate* fate = find(result, "big", op, TensorPlace::output);
    ASSERT_TRUE(fate) << op;
    EXPECT_EQ(fate->loss.overflowed, fate->loss.elements) << op;
  }
  EXPECT_EQ(find(result, "big", "copy_", TensorPlace::output)->loss.elements, 2 * 4 * kFeatures);
  EXPECT_THAT(names_of(result.cures), ::testing::Contains("part big"));
}

// A region keeps the dtype of what is written to, whatever the other argument's is.
TEST(WhatIf, AnOpInPlaceFollowsItsFirstArgument) {
  const at::Tensor gain = at::full({kFeatures}, std::ldexp(1, 17), torch::kFloat);
  Plain low = handing_on([&](at::Tensor y) { return y.mul_(gain).relu(); });
  const WhatIfResult result = ask(low, rows_of(filled(2)));
  const TensorFate* fate = find(result, "big", "mul_.Tensor", TensorPlace::output);
  ASSERT_TRUE(fate);
  EXPECT_EQ(fate->loss.overflowed, 4 * kFeatures);
  EXPECT_EQ(fate->loss.greatest, std::ldexp(1, 18));
  EXPECT_EQ(names_of(result.cures).front(), "part big");
  Plain wide = handing_on([&](const at::Tensor& y) { return (y + gain).mul_(y).relu(); });
  const WhatIfResult fp32 = ask(wide, rows_of(filled(2)));
  EXPECT_FALSE(find(fp32, "big", "mul_.Tensor", TensorPlace::output));
  EXPECT_TRUE(find(fp32, "small", "addmm", TensorPlace::input)) << "which is cast";
}

struct RecurrentImpl : torch::nn::Module {
  torch::nn::AnyModule layer;
  torch::nn::Linear head{nullptr};
  explicit RecurrentImpl(int kind) {
    torch::manual_seed(10);
    if (kind == 0) layer = torch::nn::AnyModule(torch::nn::LSTM(kFeatures, 2));
    if (kind == 1) layer = torch::nn::AnyModule(torch::nn::GRU(kFeatures, 2));
    if (kind == 2) layer = torch::nn::AnyModule(torch::nn::RNN(kFeatures, 2));
    register_module("layer", layer.ptr());
    head = register_module("head", torch::nn::Linear(2, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor steps = x.unsqueeze(0);
    if (auto* lstm = layer.ptr()->as<torch::nn::LSTM>())
      return head->forward(std::get<0>(lstm->forward(steps)).squeeze(0));
    if (auto* gru = layer.ptr()->as<torch::nn::GRU>())
      return head->forward(std::get<0>(gru->forward(steps)).squeeze(0));
    return head->forward(std::get<0>(layer.get<torch::nn::RNN>()->forward(steps)).squeeze(0));
  }
};
TORCH_MODULE(Recurrent);

// A region casts the input and the weights of each. Its LSTM gives 16 bits; on a CPU a GRU mixes
// products with a state in FP32, as LibTorch's dispatcher says below.
TEST(WhatIf, OfRecurrentLayersTheRegionsDtypesAreFollowed) {
  const char* const names[] = {"lstm", "gru", "rnn_tanh"};
  for (int kind = 0; kind < 3; ++kind) {
    const std::string op = names[kind];
    Recurrent model(kind);
    const at::Tensor x = filled(std::ldexp(1, 17));
    const bool gives_16_bits = ops_in_16_bits([&] { return model->forward(x); }).contains(op);
    EXPECT_TRUE(gives_16_bits || op != "lstm");
    const WhatIfResult result = ask(model, rows_of(x));
    const TensorFate* input = find(result, "layer", op + ".input", TensorPlace::input);
    ASSERT_TRUE(input) << op;
    EXPECT_EQ(input->loss.overflowed, x.numel()) << op;
    EXPECT_EQ(input->loss.greatest, std::ldexp(1, 17)) << op;
    const TensorFate* weights = find(result, "layer", op + ".input", TensorPlace::weights);
    ASSERT_TRUE(weights) << op;
    int64_t parameters = 0;
    for (const at::Tensor& p : model->layer.ptr()->parameters()) parameters += p.numel();
    EXPECT_EQ(weights->loss.elements, parameters) << op;
    const bool is_cast = find(result, "head", "addmm", TensorPlace::input);
    EXPECT_EQ(is_cast, !gives_16_bits) << op;
    EXPECT_THAT(names_of(result.cures), ::testing::Contains("part layer")) << op;
  }
}

// Sparse and empty tensors, those of other dtypes and those without memory.
TEST(WhatIf, WhatARegionDoesNotCastIsNotCounted) {
  const at::Tensor large = at::eye(4) * std::ldexp(1, 17);
  Plain model = handing_on([&](const at::Tensor& y) {
    const at::Tensor mixed = at::mm(large.to_sparse(), y.detach().to(torch::kFloat)) * 0;
    const at::Tensor exact = at::mm(large.to(torch::kDouble), large.to(torch::kDouble));
    const at::Tensor nothing = at::mm(y.narrow(0, 0, 0), at::eye(kFeatures));
    const at::Tensor shape = at::mm(at::empty({4, 4}, at::kMeta), at::empty({4, 4}, at::kMeta));
    EXPECT_EQ(shape.size(0), 4);
    return at::cat({nothing, y + mixed.detach() + exact.sum().to(torch::kFloat) * 0});
  });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* output = find(result, "big", "mm", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, 4 * kFeatures) << "of the sparse matrix and FP32";
  EXPECT_EQ(output->loss.overflowed, 4 * kFeatures);
  EXPECT_FALSE(find(result, "big", "mm", TensorPlace::weights));
  EXPECT_FALSE(find(result, "big", "mm", TensorPlace::input)) << "of a product without numbers";
}

// A row that is read twice has the sum of two gradients, by the definition of the derivative.
struct SparseImpl : torch::nn::Module {
  at::Tensor rows = register_parameter("rows", at::ones({3, kFeatures}));
  int64_t read = 4;
  at::Tensor forward(const at::Tensor& x) {
    at::mm(x, rows.t());  // casts the weight, and nothing reads what it gives
    return at::embedding(rows, at::zeros({read}, torch::kLong), -1, false, /*sparse=*/true)
        .sum(1, true);
  }
};
TORCH_MODULE(Sparse);

// Losses of the test's own, whose gradients are powers of two.
WhatIfResult ask_with_losses(
    const train::Network& network, torch::nn::Module& model, const data::Loader& loader,
    const std::function<std::vector<at::Tensor>(const at::Tensor& input, const at::Tensor& output)>&
        losses,
    WhatIfOptions with = {.loss_scale = 1, .dynamic_scale = false}, train::LossScale scale = {}) {
  train::TrainerOptions options = options_of(model);
  options.loss_scale = scale;
  options.losses = [losses](const train::Network& of, const data::Batch& batch) {
    return losses(batch.input, of.forward(batch));
  };
  train::Trainer trainer(network, options);
  const auto what_if = std::make_shared<WhatIf>(std::move(with));
  trainer.add(what_if);
  trainer.fit(loader);
  return what_if->result();
}

TEST(WhatIf, GradientsOfASparseWeightAreAddedUpFirst) {
  const auto times = [](double factor) {
    return [factor](const at::Tensor&, const at::Tensor& output) {
      return std::vector<at::Tensor>{output.sum() * factor};
    };
  };
  Sparse model;
  const WhatIfResult result =
      ask_with_losses(train::network(model), *model, rows_of(filled(1)), times(std::ldexp(1, 15)));
  const TensorFate* gradient = find(result, "model", "mm", TensorPlace::weight_gradient);
  ASSERT_TRUE(gradient);
  EXPECT_EQ(gradient->loss.greatest, std::ldexp(1, 17)) << "four times 2^15";
  EXPECT_EQ(gradient->loss.overflowed, kFeatures);
  Sparse unread;
  unread->read = 0;
  const WhatIfResult none =
      ask_with_losses(train::network(unread), *unread, rows_of(filled(1)), times(1));
  EXPECT_EQ(none.batches, 1);
  EXPECT_FALSE(find(none, "model", "mm", TensorPlace::weight_gradient)) << "of no numbers";
}

// What runs before the first layer belongs to no layer, in every batch.
struct BeforeImpl : torch::nn::Module {
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kFeatures, 1))};
  at::Tensor forward(const at::Tensor& x) { return head->forward(at::mm(x, at::eye(kFeatures))); }
};
TORCH_MODULE(Before);

TEST(WhatIf, WhatRunsBeforeALayerBelongsToNone) {
  const WhatIfResult result = ask(Before(), rows_of(at::cat({filled(1), filled(2)})));
  const TensorFate* output = find(result, "", "mm", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, 2 * 4 * kFeatures);
  EXPECT_FALSE(find(result, "head", "mm", TensorPlace::output));
}

// The first layer's numbers come from a buffer.
struct BufferedImpl : torch::nn::Module {
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kFeatures, 1))};
  at::Tensor table{register_buffer("table", filled(std::ldexp(1, 17)))};
  at::Tensor forward(const at::Tensor& x) { return head->forward(table) + x.sum() * 0; }
};
TORCH_MODULE(Buffered);

TEST(WhatIf, ABufferThatIsTooLargeIsNamed) {
  Buffered model;
  {
    const at::NoGradGuard no_grad;
    model->head->weight.fill_(std::ldexp(1, 18));
  }
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* input = find(result, "head", "addmm", TensorPlace::input);
  ASSERT_TRUE(input);
  EXPECT_EQ(input->from, "buffer table");
  const TensorFate* weights = find(result, "head", "addmm", TensorPlace::weights);
  ASSERT_TRUE(weights);
  EXPECT_EQ(weights->loss.overflowed, kFeatures);
  EXPECT_EQ(weights->from, "") << "they are read, and not made";
  EXPECT_EQ(input->loss.overflowed, 4 * kFeatures);
}

// Two losses of one output: its gradient is counted once for each of the two backward passes.
TEST(WhatIf, GradientsOfEveryLossCount) {
  Plain model = handing_on([](const at::Tensor& y) { return y.relu(); });
  const auto losses = [](const at::Tensor&, const at::Tensor& output) {
    return std::vector<at::Tensor>{output.sum() * std::ldexp(1, 17), output.sum()};
  };
  for (const double scale : {0.0, 1024.0}) {
    const WhatIfResult result = ask_with_losses(
        train::network(model), *model, rows_of(filled(1)), losses,
        {.loss_scale = 1, .dynamic_scale = false},
        scale > 0 ? train::LossScale{train::LossScale::Kind::fixed, scale} : train::LossScale{});
    const TensorFate* gradient = find(result, "head", "addmm", TensorPlace::output_gradient);
    ASSERT_TRUE(gradient);
    EXPECT_EQ(gradient->loss.elements, 2 * 4);
    EXPECT_EQ(gradient->loss.greatest, std::ldexp(1, 17)) << "scaled by " << scale;
    EXPECT_EQ(gradient->loss.overflowed, 4) << "scaled by " << scale;
    EXPECT_EQ(gradient->loss.least_exponent, 0) << "scaled by " << scale;
    EXPECT_EQ(gradient->loss.first_overflow, 1);
    const TensorFate* of_relu = find(result, "big", "relu", TensorPlace::output_gradient);
    ASSERT_TRUE(of_relu);
    EXPECT_EQ(of_relu->loss.elements, 2 * 4 * kFeatures);
  }
}

// The greatest gradient is that of the head's bias, four rows times a quarter: 2, 2^17, 2 and 2^14
// in the four batches. The others are small by weights of 2^-20 and inputs of 1 at most.
TEST(WhatIf, TheScalesAreThoseOfAllBatches) {
  Plain model = handing_on([](const at::Tensor& y) { return y.clamp(-1, 1); });
  {
    const at::NoGradGuard no_grad;
    model->small->weight.copy_(at::eye(kFeatures));
    model->small->bias.zero_();
    model->head->weight.fill_(std::ldexp(1, -20));
  }
  const at::Tensor x =
      at::cat({filled(2), filled(std::ldexp(1, 17)), filled(2), filled(std::ldexp(1, 14))});
  const WhatIfResult result =
      ask_with_losses(train::network(model), *model, rows_of(x),
                      [](const at::Tensor& input, const at::Tensor& output) {
                        return std::vector<at::Tensor>{output.sum() * (input.max() / 4)};
                      },
                      {.loss_scale = 4, .dynamic_scale = true});
  // 2^17 overflows times every scale, of which 1 is the least; 2^14 is below 65504 times 2.
  EXPECT_EQ(result.least_scale, 1);
  EXPECT_EQ(result.greatest_scale, 4);
}

struct GainImpl : torch::nn::Module {
  at::Tensor gain = register_parameter("gain", at::ones({kFeatures}));
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kFeatures, 1))};
  torch::nn::Linear twin{register_module("twin", torch::nn::Linear(kFeatures, 1))};
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor wide = x * gain;  // FP32 in a region
    return head->forward(wide) + twin->forward(wide);
  }
};
TORCH_MODULE(Gain);

TEST(WhatIf, WhatIsReadTwiceIsCastOnce) {
  Gain model;
  const WhatIfResult result = ask_with_losses(train::network(model), *model, rows_of(filled(1)),
                                              [](const at::Tensor&, const at::Tensor& output) {
                                                return std::vector<at::Tensor>{output.sum()};
                                              });
  for (const char* layer : {"head", "twin"}) {
    const TensorFate* input = find(result, layer, "addmm", TensorPlace::input);
    ASSERT_TRUE(input) << layer;
    EXPECT_EQ(input->loss.elements, 4 * kFeatures) << layer;
    const TensorFate* gradient = find(result, layer, "addmm", TensorPlace::input_gradient);
    ASSERT_TRUE(gradient) << layer;
    EXPECT_EQ(gradient->loss.elements, 4 * kFeatures) << layer;
  }
}

// 0 times 2^40 is added, whose gradient by the gain is 2^40 and more.
TEST(WhatIf, GradientsOfWhatStaysInFp32LowerNoScale) {
  Plain model = handing_on([](const at::Tensor& y) { return y; });
  const at::Tensor gain = model->register_parameter("gain", at::ones({kFeatures}));
  model->between = [gain](const at::Tensor& y) {
    return y + ((gain - gain.detach()) * std::ldexp(1, 40)).sum();
  };
  const auto losses = [](const at::Tensor&, const at::Tensor& output) {
    return std::vector<at::Tensor>{output.sum()};
  };
  const WhatIfResult result = ask_with_losses(train::network(model), *model, rows_of(filled(1)),
                                              losses, {.loss_scale = 16, .dynamic_scale = true});
  EXPECT_EQ(result.least_scale, 16);
}

// A part's layers are those below it, and no others of the same beginning.
struct NestedImpl : torch::nn::Module {
  struct Part : torch::nn::Module {
    torch::nn::Linear inner{register_module("inner", torch::nn::Linear(kFeatures, kFeatures))};
  };
  std::shared_ptr<Part> part = register_module("part", std::make_shared<Part>());
  torch::nn::Linear part2{register_module("part2", torch::nn::Linear(kFeatures, 1))};
  at::Tensor forward(const at::Tensor& x) { return part2->forward(part->inner->forward(x)); }
};
TORCH_MODULE(Nested);

TEST(WhatIf, APartInFp32IsNamedWithAllBelowIt) {
  WhatIfOptions options;
  options.policy.keep_part_in_fp32("part");
  const WhatIfResult result = ask(Nested(), rows_of(filled(1)), options);
  EXPECT_FALSE(find(result, "part.inner", "addmm", TensorPlace::output));
  EXPECT_TRUE(find(result, "part2", "addmm", TensorPlace::output));
}

// A penalty on gradients: what backward computes is no part of forward.
TEST(WhatIf, OpsOfABackwardPassWithinTheLossAreNotForwards) {
  Plain model = handing_on([](const at::Tensor& y) { return y.relu(); });
  const WhatIfResult result = ask_with_losses(
      train::network(model), *model, rows_of(filled(1)),
      [&](const at::Tensor&, const at::Tensor& output) {
        const auto inner = torch::autograd::grad({output.sum()}, {model->big->weight}, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true);
        return std::vector<at::Tensor>{output.sum() + inner[0].square().sum()};
      });
  EXPECT_TRUE(find(result, "head", "addmm", TensorPlace::output));
  for (const TensorFate& fate : result.tensors) {
    EXPECT_NE(fate.op, "mm");
    EXPECT_NE(fate.op, "threshold_backward");
  }
}

// A mask that dropout makes in memory of its own is a part of dropout.
TEST(WhatIf, MemoryThatAnOpFillsIsNoTensorOfTheStep) {
  Plain model = handing_on([](const at::Tensor& y) { return at::dropout(y, 0.5, true); });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* output = find(result, "big", "dropout", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, 4 * kFeatures);
  EXPECT_EQ(output->loss.greatest, 2) << "1 / 0.5";
  EXPECT_EQ(output->loss.least_exponent, 1);
}

TEST(WhatIf, ATensorThatAProductReadsTwiceCountsOnce) {
  Plain model = handing_on([](const at::Tensor& y) {
    const at::Tensor square = at::eye(kFeatures);
    return at::mm(y, at::mm(square, square));
  });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  EXPECT_EQ(find(result, "big", "mm", TensorPlace::input)->loss.elements, kFeatures * kFeatures);
}

// An output that is too large before what hands it on; where neither is, by what is lost.
TEST(WhatIf, TheMostHarmedComesFirst) {
  const auto places = [](const WhatIfResult& result) {
    std::vector<std::string> all;
    for (const TensorFate& fate : result.tensors)
      all.push_back(fate.layer + " " + fate.op + " " + std::string(name_of(fate.place)));
    return all;
  };
  const auto order = [&](const std::vector<std::string>& all, const std::string& one) {
    return std::ranges::find(all, one) - all.begin();
  };
  Plain large = handing_on([](const at::Tensor& y) {
    return y.relu().to(torch::kDouble).to(torch::kFloat);  // which is cast again, from outside
  });
  auto all = places(ask(large, rows_of(filled(std::ldexp(1, 17)))));
  EXPECT_LT(order(all, "big addmm input"), order(all, "small addmm input"));
  EXPECT_LT(order(all, "big addmm input"), order(all, "big addmm output")) << "handed on";
  EXPECT_LT(order(all, "small addmm input"), order(all, "big relu output"));
  // Half of the input's numbers, which are all of its norm, and then every number is flushed.
  const at::Tensor half = filled(0).index_fill(1, at::arange(kFeatures / 2), std::ldexp(1, -30));
  all = places(ask(handing_on([](const at::Tensor& y) { return (y + 1) * std::ldexp(1, -30); }),
                   rows_of(half)));
  EXPECT_LT(order(all, "big mul.Scalar output"), order(all, "big addmm input"));
  // Seven eighths of the numbers and little of the norm, then fewer numbers and all of the norm.
  const at::Tensor most = filled(std::ldexp(1, -30)).index_fill(1, at::arange(1), 1);
  all = places(ask(handing_on([](const at::Tensor& y) {
                     return y.clamp_max(std::ldexp(1, -30)).index_fill(1, at::arange(4), 0);
                   }),
                   rows_of(most)));
  EXPECT_LT(order(all, "big index_fill.int_Scalar output"), order(all, "big addmm input"));
  // Nothing is flushed: half of the numbers are subnormal, then all.
  const at::Tensor small =
      filled(std::ldexp(1, -4)).index_fill(1, at::arange(4), std::ldexp(1, -20));
  all = places(ask(handing_on([](const at::Tensor& y) { return y.clamp_max(std::ldexp(1, -18)); }),
                   rows_of(small)));
  EXPECT_LT(order(all, "big clamp_max output"), order(all, "big addmm input"));
}

// Numbers without a dimension do not make a 16-bit result FP32, unless there is nothing else.
TEST(WhatIf, ScalarsDoNotDecide) {
  const at::Tensor factor = at::full({}, std::ldexp(1, 17), torch::kFloat);
  Plain model = handing_on(
      [&](const at::Tensor& y) { return y * factor * factor.reciprocal() + y.sum().neg(); });
  const auto forward = [&] { return model->forward(filled(1)); };
  EXPECT_TRUE(ops_in_16_bits(forward).contains("mul"));
  EXPECT_TRUE(ops_in_16_bits(forward).contains("neg"));
  EXPECT_FALSE(ops_in_16_bits(forward).contains("reciprocal"));
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* product = find(result, "big", "mul.Tensor", TensorPlace::output);
  ASSERT_TRUE(product);
  EXPECT_EQ(product->loss.overflowed, 4 * kFeatures);
  EXPECT_TRUE(find(result, "big", "neg", TensorPlace::output));
  EXPECT_FALSE(find(result, "big", "reciprocal", TensorPlace::output));
}

}  // namespace
}  // namespace demi::monitor

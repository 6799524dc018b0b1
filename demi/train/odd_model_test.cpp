// Models of kinds that trained wrongly, or ended in a message of LibTorch's. Truth: the loop that
// one would write by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/optim/sgd.h"
#include "demi/train/small_testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using testing::Fixed;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Rows;
using testing::sgd;
using testing::Small;
using testing::with_a_shared_layer;
namespace F = torch::nn::functional;

TEST(OddModel, ASharedLayerIsOneLayer) {
  const at::Tensor x = torch::randn({8, 6}), y = torch::arange(8) % 6;
  torch::nn::Sequential model = with_a_shared_layer(), by_hand = with_a_shared_layer();
  const std::vector<at::Tensor> once{by_hand->parameters()[0], by_hand->parameters()[1]};
  Trainer(model).fit(Rows(x, y, 8));  // the default optimizer
  torch::optim::Adam adam(once, torch::optim::AdamOptions(1e-3));
  F::cross_entropy(by_hand->forward(x), y).backward();
  adam.step();
  EXPECT_TRUE(torch::allclose(model->parameters()[0], once[0], 1e-5, 1e-7));
}

TEST(OddModel, AGradientPenaltyCountsASharedLayerOnceAndNoFrozenOne) {
  const at::Tensor x = torch::randn({8, 6}), y = torch::arange(8) % 6;
  for (const bool frozen : {false, true}) {
    torch::nn::Sequential model = with_a_shared_layer(), by_hand = with_a_shared_layer();
    std::vector<at::Tensor> once{by_hand->parameters()[0], by_hand->parameters()[1]};
    if (frozen) {
      model->parameters()[1].set_requires_grad(false);
      once[1].set_requires_grad(false);
      once.pop_back();
    }
    const at::Tensor loss = F::cross_entropy(by_hand->forward(x), y);
    at::Tensor squares = torch::zeros({});
    for (const at::Tensor& g : torch::autograd::grad({loss}, once, {}, true, true))
      squares = squares + g.square().sum();
    const at::Tensor all = loss + 0.5 * squares.sqrt();
    TrainerOptions options{.gradient_penalty = 0.5};
    options.optimizers = {
        std::make_shared<optim::SGD>(std::vector<at::Tensor>{model->parameters()[0]}, 0.1)};
    const History history = Trainer(model, options).fit(Rows(x, y, 8));
    EXPECT_NEAR(history.steps.front().loss, all.item<double>(), 1e-5) << frozen;
  }
}

struct IndicesImpl : torch::nn::Module {
  IndicesImpl() {
    table = register_parameter("table", torch::randn({5, 3}));
    order = register_buffer("order", torch::tensor({4, 3, 2, 1, 0}));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  at::Tensor forward(const at::Tensor& input) {
    return norm(torch::embedding(table, order.index_select(0, input)));
  }
  at::Tensor table, order;
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Indices);

TEST(OddModel, IntegersStayIntegersInATruePrecision) {
  for (const char* precision : {"bf16-true", "fp64"}) {
    Indices model;
    TrainerOptions options{.epochs = 300, .precision = parse_precision(precision)};
    options.loss = [](const at::Tensor& o, const at::Tensor&) { return o.square().mean(); };
    Trainer(model, options).fit(Rows(torch::arange(4), torch::arange(4), 4));
    EXPECT_EQ(model->order.scalar_type(), at::kLong);
    EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), 300) << precision;
    EXPECT_EQ(model->table.scalar_type(), parse_precision(precision).weights);
  }
}

TEST(OddModel, WeightsOfAnotherFormatAreRefused) {
  Small s;
  to_precision(*s.model, torch::kBFloat16);
  for (const char* precision : {"fp32", "bf16"})
    EXPECT_THAT(message_of([&] { s.trainer({.precision = parse_precision(precision)}); }),
                AllOf(HasSubstr("weight of bf16"), HasSubstr("accepted: fp32")));
  EXPECT_NO_THROW(s.trainer({.precision = parse_precision("bf16-true")}));
  Small frozen;
  for (at::Tensor& p : frozen.model->parameters()) p.set_requires_grad(false);
  to_precision(*frozen.model, torch::kHalf);
  torch::nn::Sequential both(frozen.model, torch::nn::Linear(3, 2));
  EXPECT_NO_THROW(Trainer(both, {.precision = parse_precision("bf16")})) << "not trained";
}

TEST(OddModel, ASequentialGetsNoLengths) {
  class WithLengths : public Rows {
   public:
    using Rows::Rows;
    data::Batch batch(int64_t epoch, int64_t position) const override {
      data::Batch one = Rows::batch(epoch, position);
      one.lengths = torch::ones({one.input.size(0)}, torch::kLong);
      return one;
    }
  };
  Small s, plain;
  torch::nn::Sequential model(s.model);
  Trainer(network(model), sgd(*model), {}).fit(WithLengths(s.input, s.target, 4));
  plain.trainer().fit(plain.loader());
  EXPECT_TRUE(torch::equal(s.weight(), plain.weight()));
}

TEST(OddModel, WhatIsMissingIsRefusedInWords) {
  Small s;
  const auto made = [&](Network net, std::shared_ptr<torch::optim::Optimizer> optimizer) {
    return message_of([&] { Trainer(std::move(net), std::move(optimizer), TrainerOptions()); });
  };
  EXPECT_THAT(made(network(s.model), nullptr), HasSubstr("an optimizer is null"));
  EXPECT_THAT(made({.module = nullptr, .forward = network(s.model).forward}, sgd(*s.model)),
              HasSubstr("no module"));
  EXPECT_THAT(made({.module = s.model.ptr(), .forward = {}}, sgd(*s.model)),
              HasSubstr("no forward function"));
  const auto empty = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{}, 0.1);
  EXPECT_THAT(made(network(s.model), empty), HasSubstr("an optimizer has no parameters"));
  const auto groupless = std::make_shared<torch::optim::SGD>(
      std::vector<torch::optim::OptimizerParamGroup>{}, torch::optim::SGDOptions(0.1));
  EXPECT_THAT(made(network(s.model), groupless), HasSubstr("0 parameter groups"));
  EXPECT_THAT(message_of([] { Trainer{Fixed()}; }), HasSubstr("the model has no parameters"));
  EXPECT_THAT(message_of([&] { s.trainer().add(nullptr); }), HasSubstr("a callback is null"));
  EXPECT_THAT(message_of([&] { evaluate({}, s.loader(), {}); }), HasSubstr("no module"));
  const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> none;
  EXPECT_THAT(message_of([&] { LossFunction{none}; }), HasSubstr("the function is empty"));
  EXPECT_THAT(message_of([&] { s.trainer({.metrics = {{.name = "m", .sum = {}}}}); }),
              HasSubstr("a metric has no function"));
}

TEST(OddModel, ADeviceThatIsNotHereIsADeviceError) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this machine has CUDA";
  Small s;
  try {
    s.trainer({.device = c10::Device(c10::kCUDA)});
    ADD_FAILURE() << "no exception";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA cannot be used"));
    EXPECT_THAT(error.what(), Not(HasSubstr("frame #")));
  }
  EXPECT_THROW(evaluate(network(s.model), s.loader(), {.device = c10::Device(c10::kCUDA)}),
               DeviceError);
}

TEST(OddModel, AModelOnAnotherDeviceIsRefused) {
  Fixed model;
  model->register_parameter("weight", torch::empty({2}, torch::kMeta));
  EXPECT_THAT(message_of([&] { Trainer{model}; }), HasSubstr("the model is not on the device"));
}

}  // namespace
}  // namespace demi::train

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/loop/precision.h"
#include "demi/loop/step.h"
#include "demi/optim/sgd.h"

namespace demi::loop {
namespace {

torch::nn::Sequential network() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(32, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 1));
}

/// A run in NVFP4, whose gradients are rounded by chance, of two batches a step.
struct NarrowRun {
  torch::nn::Sequential model = network();
  optim::SGD sgd{model->parameters(), optim::SGDOptions(0.1)};
  std::unique_ptr<Step> step;

  explicit NarrowRun(std::int64_t steps_taken = 0) { begin(steps_taken); }

  void begin(std::int64_t steps_taken) {
    step.reset();
    unapply(*model);
    step = std::make_unique<Step>(
        Job{.models = {&*model}, .optimizers = {&sgd}},
        Options{
            .precision = parse_precision("nvfp4"), .accumulate = 2, .steps_taken = steps_taken});
  }
  void batch(int number) {
    torch::manual_seed(number);
    const at::Tensor x = torch::randn({64, 32});
    step->batch([&] { return model->forward(x); },
                [&](const at::Tensor& y) { return torch::mse_loss(y, x.sum(1, true)); });
    if (step->is_due()) step->finish();
  }
};

bool are_equal(NarrowRun& a, NarrowRun& b) {
  const auto one = a.model->parameters(), other = b.model->parameters();
  bool equal = true;
  for (std::size_t i = 0; i < one.size(); ++i) equal &= one[i].equal(other[i]);
  return equal;
}

TEST(StepByRecipe, APrecisionAppliesItsRecipeUnlessTheModelHasOne) {
  NarrowRun run;
  EXPECT_EQ(quantized_layers(*run.model).size(), 2U);
  torch::nn::Sequential other = network();
  demi::apply(OpPolicy().set_part("0", "mxfp8"), *other);
  optim::SGD sgd(other->parameters(), optim::SGDOptions(0.1));
  const Step step({.models = {&*other}, .optimizers = {&sgd}},
                  {.precision = parse_precision("nvfp4")});
  ASSERT_EQ(quantized_layers(*other).size(), 1U);
  EXPECT_EQ(quantized_layers(*other)[0].recipe, "mxfp8");
}

TEST(StepByRecipe, AResumedRunRoundsByChanceAsOneThatWasNotStopped) {
  NarrowRun straight, resumed, renumbered;
  for (int batch = 0; batch < 6; ++batch) straight.batch(batch);
  for (int batch = 0; batch < 6; ++batch) {
    if (batch == 2) resumed.begin(1);
    if (batch == 2) renumbered.begin(7);
    resumed.batch(batch);
    renumbered.batch(batch);
  }
  EXPECT_TRUE(are_equal(straight, resumed));
  EXPECT_FALSE(are_equal(straight, renumbered)) << "other bits in another step";
}

TEST(StepByRecipe, SoDoesOneThatIsReopenedBetweenTwoBatches) {
  for (const std::int64_t batches : {1, 0}) {
    NarrowRun straight, resumed;
    for (int batch = 0; batch < 4; ++batch) {
      straight.batch(batch);
      if (batch == 3) {
        std::vector<at::Tensor> gradients;
        for (const at::Tensor& p : resumed.model->parameters())
          gradients.push_back(p.grad().clone());
        resumed.begin(1);
        const auto parameters = resumed.model->parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i)
          parameters[i].mutable_grad() = gradients[i];
        resumed.step->reopen({}, batches);
        torch::manual_seed(batch);
        const at::Tensor x = torch::randn({64, 32});
        resumed.step->batch([&] { return resumed.model->forward(x); },
                            [&](const at::Tensor& y) { return torch::mse_loss(y, x.sum(1, true)); },
                            {.last = true});
        resumed.step->finish();
      } else {
        resumed.batch(batch);
      }
    }
    EXPECT_EQ(are_equal(straight, resumed), batches == 1);
  }
}

at::Tensor inputs_of(std::int64_t number) {
  const at::Tensor all =
      at::arange(64 * 32, at::kDouble) * 0.37 + 100.0 * static_cast<double>(number);
  return all.sin().view({64, 32}).to(at::kFloat);
}

// Which batch a rounding by chance belongs to is no matter of which process computes it.
TEST(StepByRecipe, TwoRanksRoundByChanceAsOneProcessThatAccumulates) {
  const auto forward_of = [](torch::nn::Sequential& model, const at::Tensor& x) {
    return [&model, x] { return model->forward(x); };
  };
  const auto loss_of = [](const at::Tensor& x) {
    return [x](const at::Tensor& y) { return torch::mse_loss(y, x.sum(1, true)); };
  };
  NarrowRun alone;
  for (int batch = 0; batch < 2; ++batch) {
    const at::Tensor x = inputs_of(batch);
    alone.step->batch(forward_of(alone.model, x), loss_of(x));
    if (alone.step->is_due()) alone.step->finish();
  }
  const auto expected = alone.model->parameters();
  std::vector<torch::nn::Sequential> models{network(), network()};
  const auto errors = testing::on_ranks(2, [&](distributed::ProcessGroup& group) {
    torch::nn::Sequential& model = models[static_cast<std::size_t>(group.rank())];
    distributed::DistributedDataParallel parallel(*model, group);
    optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
    Step step({.models = {&*model}, .optimizers = {&sgd}, .parallel = {&parallel}},
              {.precision = parse_precision("nvfp4")});
    const at::Tensor x = inputs_of(group.rank());
    step.batch(forward_of(model, x), loss_of(x));
    step.finish();
    const auto parameters = model->parameters();
    for (const std::size_t i : {0, 2})  // with a recipe; other gradients are added up in bf16
      EXPECT_LT(((parameters[i] - expected[i]).norm() / expected[i].norm()).item<float>(), 1e-5)
          << i;
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace demi::loop

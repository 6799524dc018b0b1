// A training whose steps are skipped for the norm of their gradients.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "demi/optim/sgd.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;
using testing::Rows;

struct Limited {
  torch::nn::Sequential model{torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2)};
  History history;
};

// 24 steps an epoch; the loss is 50 x greater in one of them. Saves its end in `to`.
Limited fit(optim::NormLimit limit, int64_t epochs, const fs::path& to = {},
            const fs::path& from = {}) {
  torch::manual_seed(3);
  Limited run;
  TrainerOptions options;
  options.epochs = epochs;
  options.give_up_after = 2;
  options.read_every = 1;
  options.checkpoints = {.folder = to, .in_background = false};
  options.loss = LossFunction([](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean() * (target[0][0].item<float>() > 0.999 ? 50 : 1);
  });
  options.optimizers = {std::make_shared<optim::SGD>(run.model->parameters(),
                                                     optim::SGDOptions(0.01).momentum(0.5),
                                                     optim::StepOptions{.skip_norm_above = limit})};
  Trainer trainer(network(run.model), options);
  if (!from.empty()) trainer.resume(from);
  const at::Tensor x = (at::arange(96 * 3, at::kDouble) * 1.3).sin().to(at::kFloat).view({96, 3});
  at::Tensor y = (x * 0.9).cos().narrow(1, 0, 2).clamp_max(0.9);
  y[20][0] = 1;  // the first of the sixth batch
  run.history = trainer.fit(Rows(x, y, 4));
  return run;
}

TEST(NormLimit, SkipsAreNoFailureAndAreInTheHistory) {
  const Limited run = fit({.bound = 1e-9}, 2);
  EXPECT_FALSE(run.history.failed) << "give_up_after is 2";
  EXPECT_EQ(run.history.skipped_steps, 48);
  for (const StepMetrics& step : run.history.steps) {
    EXPECT_TRUE(step.skipped && step.skipped_for_norm);
    EXPECT_GT(*step.grad_norm, 1e-9);
  }
  const auto buffers = run.model->named_buffers();
  EXPECT_EQ(buffers["1.num_batches_tracked"].item<int64_t>(), 0) << "statistics go back";
}

TEST(NormLimit, ByDeviationsARunGoesOnWithItsNorms) {
  const fs::path folder =
      fs::temp_directory_path() / ("demi-norm-limit-" + std::to_string(getpid()));
  fs::remove_all(folder);
  const optim::NormLimit limit{.deviations = 3};
  const Limited whole = fit(limit, 9);
  fit(limit, 7, folder / "first");
  const Limited rest = fit(limit, 9, folder / "second", folder / "first" / "last");
  const auto skips = [](const Limited& run) {
    std::vector<int64_t> steps;
    for (const StepMetrics& step : run.history.steps)
      if (step.skipped_for_norm) steps.push_back(step.step);
    return steps;
  };
  EXPECT_EQ(skips(whole), (std::vector<int64_t>{150, 174, 198})) << "the sixth of 24, after 128";
  EXPECT_EQ(skips(rest), skips(whole));
  for (std::size_t i = 0; i < whole.model->parameters().size(); ++i)
    EXPECT_TRUE(at::equal(rest.model->parameters()[i], whole.model->parameters()[i])) << i;
  fs::remove_all(folder);
}

}  // namespace
}  // namespace demi::train

// A checkpoint from the middle of an accumulation window, as demi at a98f01fc saved it: a later one
// writes the same names, and resumes from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "demi/core/source_dir_testing.h"
#include "demi/optim/sgd.h"
#include "demi/train/resume_testing.h"

namespace demi::train {
namespace {

using namespace testing;
using ::testing::DoubleNear;
using ::testing::ElementsAreArray;

// 2 epochs of 5 batches, steps of 3 and 2, whose sums all differ: answers that do not count, a
// gradient penalty, a scaler that guards running statistics, a schedule.
Job job() {
  SmallNet model(/*dropout=*/0);
  {
    const at::NoGradGuard no_grad;
    double value = 0;
    for (at::Tensor& parameter : model->parameters())
      parameter.copy_((at::arange(parameter.numel(), at::kDouble) * 1.3 + ++value)
                          .sin()
                          .reshape(parameter.sizes()));
  }
  Job one;
  one.network = network(model);
  one.options.epochs = 2;
  one.options.precision = parse_precision("fp32");
  one.options.accumulate = 3;
  one.options.gradient_penalty = 0.125;
  one.options.loss_scale = {LossScale::Kind::dynamic};
  one.options.scaler = {.init_scale = 256, .growth_interval = 2};
  one.options.schedule = optim::lr::exponential(0.5);
  one.options.optimizers = {
      std::make_shared<optim::SGD>(model->parameters(), optim::SGDOptions(0.1).momentum(0.9))};
  const at::Tensor at = at::arange(18 * 6, at::kDouble).reshape({18, 6});
  at::Tensor target = at::arange(18) % 3;
  for (const int64_t ignored : {2, 9, 10, 15}) target[ignored] = kIgnoredClass;
  one.training = std::make_shared<data::TensorLoader>((at * at * 0.01).sin().to(at::kFloat), target,
                                                      data::OrderOptions{.batch_size = 4});
  return one;
}

// The fixture is from after the second of the second epoch's three batches.
constexpr int64_t kMoment = 7;
checkpoint::Checkpoint fixture() {
  return checkpoint::load(source_dir() / "tests/fixtures/train/open_window");
}

// The records of that version, also of the run that was resumed from there.
struct Row {
  int64_t step, examples;  // examples: of the epoch so far
  double loss, accuracy, learning_rate, loss_scale, grad_norm;
};
const std::vector<Row> kRows{
    {1, 12, 1.51393668, 0.444444444, 0.1, 256, 1.28288984},
    {2, 18, 1.16999712, 0.2, 0.05, 256, 0.577599049},
    {3, 12, 1.33373239, 0.555555556, 0.025, 512, 1.12496555},
    {4, 18, 1.14213495, 0.2, 0.0125, 512, 0.525820136},
};
constexpr double kEpochLoss = 1.26530474, kEpochAccuracy = 0.428571429;

// LibTorch's kernels round differently from one instruction set to the next.
void expect_row(const StepMetrics& step, const Row& row) {
  EXPECT_EQ(step.step, row.step);
  EXPECT_NEAR(step.loss, row.loss, 1e-4);
  EXPECT_NEAR(step.accuracy.value_or(-1), row.accuracy, 1e-8);
  EXPECT_DOUBLE_EQ(step.learning_rate, row.learning_rate);
  EXPECT_EQ(step.loss_scale, row.loss_scale);
  EXPECT_NEAR(step.grad_norm.value_or(-1), row.grad_norm, 1e-4);
  EXPECT_FALSE(step.skipped);
}

struct Heard : Callback {
  std::vector<int64_t> examples;
  void on_step(const StepMetrics&, int64_t of_epoch) override { examples.push_back(of_epoch); }
};

template <class Map>
std::vector<std::string> names_of(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, value] : map) names.push_back(name);
  return names;
}

TEST(OpenWindow, IsSavedUnderTheSameNames) {
  const checkpoint::Checkpoint before = fixture(), now = stopped_after(job(), kMoment).state;
  EXPECT_THAT(names_of(now.state), ElementsAreArray(names_of(before.state)));
  EXPECT_THAT(names_of(now.model), ElementsAreArray(names_of(before.model)));
  EXPECT_THAT(names_of(now.numbers), ElementsAreArray(names_of(before.numbers)));
  for (const auto& [name, saved] : before.state) {
    if (!now.state.contains(name) || name.starts_with("random/")) continue;
    const at::Tensor& tensor = now.state.at(name);
    EXPECT_EQ(tensor.scalar_type(), saved.scalar_type()) << name;
    ASSERT_EQ(tensor.sizes(), saved.sizes()) << name;
    if (is_compared(name)) {
      EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), saved.to(at::kDouble), 1e-4, 1e-4,
                               /*equal_nan=*/true))
          << name << "\n"
          << tensor << "\n"
          << saved;
    }
  }
  for (const auto& [part, numbers] : before.numbers) {
    const StateDict& others = now.numbers.at(part);
    EXPECT_THAT(names_of(others), ElementsAreArray(names_of(numbers))) << part;
    for (const auto& [name, number] : numbers) {
      if (!is_compared(name) || !others.contains(name)) continue;
      EXPECT_THAT(others.at(name), DoubleNear(number, 1e-4)) << part << " " << name;
    }
  }
}

TEST(OpenWindow, OfAnOlderVersionIsResumed) {
  checkpoint::Checkpoint before = fixture();
  before.numbers.at("progress").at("window_seconds") = 1000;
  before.numbers.at("progress").at("window_data_seconds") = 500;
  const auto heard = std::make_shared<Heard>();
  const History history = train(job(), &before, heard).history;
  ASSERT_EQ(history.steps.size(), kRows.size());
  for (std::size_t i = 0; i < kRows.size(); ++i) expect_row(history.steps[i], kRows[i]);
  EXPECT_THAT(heard->examples, ElementsAreArray({kRows[2].examples, kRows[3].examples}));
  ASSERT_EQ(history.epochs.size(), 2U);
  EXPECT_EQ(history.epochs[1].examples, 18);
  EXPECT_NEAR(history.epochs[1].loss, kEpochLoss, 1e-4);
  EXPECT_NEAR(history.epochs[1].accuracy.value_or(-1), kEpochAccuracy, 1e-8);
  // The step's seconds are those from before, too, and those of the next step are its own.
  EXPECT_GE(history.steps[2].seconds, 1000);
  EXPECT_GE(history.steps[2].data_seconds, 500);
  EXPECT_LT(history.steps[3].seconds, 1000);
  EXPECT_LT(history.steps[3].data_seconds, 500);
}

// The sums of the saved window alone: what its loss and accuracy are of.
TEST(OpenWindow, HoldsTheSumsOfItsBatches) {
  const checkpoint::Checkpoint now = stopped_after(job(), kMoment).state;
  EXPECT_EQ(now.numbers.at("progress").at("window_examples"), 8);
  EXPECT_EQ(now.state.at("window/answers").item<int64_t>(), 7) << "one of 8 is ignored";
  EXPECT_GT(now.numbers.at("progress").at("window_seconds"), 0);
  const checkpoint::Checkpoint closed = train(job()).state;
  for (const char* name : {"window_examples", "window_seconds", "window_data_seconds"})
    EXPECT_EQ(closed.numbers.at("progress").at(name), 0) << name;
  for (const auto& [name, tensor] : closed.state)
    EXPECT_FALSE(name.starts_with("window/") || name.starts_with("gradient/")) << name;
}

}  // namespace
}  // namespace demi::train

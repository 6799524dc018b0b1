#include "demi/monitor/find_nonfinite.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <limits>
#include <string>

#include "demi/autocast/autocast.h"
#include "demi/core/source_dir_testing.h"
#include "demi/monitor/status.h"
#include "demi/optim/adam.h"
#include "demi/step/param_state.h"

namespace demi::monitor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
}

void backward(torch::nn::Sequential& model) {
  model->forward(at::randn({5, 4})).square().sum().backward();
}

std::vector<std::string> texts_of(const std::vector<NonFinite>& found) {
  std::vector<std::string> texts;
  for (const NonFinite& one : found) texts.push_back(to_string(one));
  return texts;
}

void put(const at::Tensor& tensor, std::vector<float> values) {
  const at::NoGradGuard no_grad;
  tensor.view(-1).slice(0, 0, static_cast<int64_t>(values.size())).copy_(at::tensor(values));
}

at::Tensor moment(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) return adam->exp_avg_sq();
  return static_cast<optim::ParamState&>(state)["exp_avg_sq"];
}

template <class Optimizer, class Options>
void expect_all_four_named() {
  auto model = make_model();
  Optimizer optimizer(model->parameters(), Options(1e-3));
  backward(model);
  EXPECT_THAT(find_nonfinite(*model, optimizer), IsEmpty());
  optimizer.step();
  EXPECT_THAT(find_nonfinite(*model, optimizer), IsEmpty());
  const auto parameters = model->named_parameters();
  put(parameters["0.bias"], {kInf});
  put(parameters["0.weight"].grad(), {kInf, -kInf, kNan});
  put(model->named_buffers()["1.running_var"], {kNan});
  put(moment(optimizer, parameters["1.weight"]), {kNan, kNan});
  EXPECT_THAT(texts_of(find_nonfinite(*model, optimizer)),
              ElementsAre("the parameter 0.bias: 1 Inf", "the gradient of 0.weight: 2 Inf, 1 NaN",
                          "the buffer 1.running_var: 1 NaN", "the exp_avg_sq of 1.weight: 2 NaN"));
}

TEST(FindNonFinite, NamesParametersGradientsBuffersAndMoments) {
  expect_all_four_named<optim::Adam, optim::AdamOptions>();
  expect_all_four_named<torch::optim::Adam, torch::optim::AdamOptions>();
}

TEST(FindNonFinite, ReadsSixteenBitsAndSparseGradients) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 2).sparse(true));
  (embedding->forward(at::tensor({3, 3})) * kInf).sum().backward();
  EXPECT_THAT(texts_of(find_nonfinite(*embedding)), ElementsAre("the gradient of weight: 2 Inf"));
  torch::nn::Linear half(2, 2);
  half->to(c10::kHalf);
  put(half->weight, {70000});
  EXPECT_THAT(texts_of(find_nonfinite(*half)), ElementsAre("the parameter weight: 1 Inf"));
}

TEST(FindNonFinite, AParameterOfAnotherModelHasNoName) {
  auto model = make_model(), other = make_model();
  optim::Adam optimizer(other->parameters(), optim::AdamOptions(1e-3));
  backward(other);
  optimizer.step();
  put(moment(optimizer, other->parameters()[0]), {kNan});
  EXPECT_THAT(texts_of(find_nonfinite(*model, optimizer)),
              ElementsAre("the exp_avg_sq of ?: 1 NaN"));
}

TEST(Status, SaysWhatTheScalerAndTheModelHold) {
  auto model = make_model();
  optim::Adam optimizer(model->parameters(), optim::AdamOptions(1e-3));
  GradScaler scaler({.init_scale = 1024, .growth_interval = 7});
  const auto train = [&](float factor) {
    optimizer.zero_grad();
    scaler.scale(model->forward(at::randn({5, 4})).square().sum() * factor).backward();
    scaler.step(optimizer);
    scaler.update();
  };
  train(1);
  train(kInf);
  train(1);
  put(model->parameters()[0], {kInf});
  const Status found = status(*model, optimizer, scaler);
  ASSERT_TRUE(found.scaling);
  EXPECT_EQ(found.scaling->scale, 512);  // halved once
  EXPECT_EQ(found.scaling->growth_tracker, 1);
  EXPECT_EQ(found.scaling->growth_interval, 7);
  EXPECT_EQ(found.scaling->skipped_steps, 1);
  EXPECT_FALSE(found.autocast);
  EXPECT_EQ(found.dtype, "bf16");
  EXPECT_EQ(found.policy, "float32");
  EXPECT_EQ(found.device, "cpu");
  EXPECT_THAT(texts_of(found.nonfinite), ElementsAre("the parameter 0.weight: 1 Inf"));
  // The page shows this very text.
  std::ifstream page(source_dir() / "docs/reference/monitor.md");
  std::string shown;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "<!-- end of status -->") inside = false;
    if (inside) shown += line.substr(4) + "\n";
    if (line == "<!-- status -->") inside = true;
  }
  EXPECT_EQ(shown, to_string(found));
}

TEST(Status, SeesTheRegion) {
  auto model = make_model();
  optim::Adam optimizer(model->parameters(), optim::AdamOptions(1e-3));
  GradScaler none({.enabled = false});
  const Autocast region(c10::kCPU, c10::kHalf);
  const Status found = status(*model, optimizer, none);
  EXPECT_TRUE(found.autocast);
  EXPECT_EQ(found.dtype, "fp16");
  EXPECT_FALSE(found.scaling);
  EXPECT_THAT(to_string(found), HasSubstr("loss scale none\n"));
  EXPECT_THAT(to_string(found), HasSubstr("Inf, NaN   none\n"));
}

}  // namespace
}  // namespace demi::monitor

#include "demi/imported/lost_gradients.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "demi/core/error.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/imported_model.h"
#include "demi/tensor/module_tensors.h"

namespace demi::imported {
namespace {

using checkpoint::NamedTensors;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A clamped scale, a teacher that follows the student, a target that the student makes.
TEST(WeightsWithoutGradients, AreTakenWhereNothingIsLost) {
  const NamedTensors truth = tensors_in("teacher.safetensors");
  ImportedModel model(fixture("teacher.pt2"));
  const at::Tensor y = model->forward(truth.at("x"));
  expect_near(y, truth.at("train.0"));
  y.square().sum().backward();
  for (const auto& [name, parameter] : tensor::parameters_once(*model)) {
    EXPECT_EQ(parameter.grad().defined(), truth.contains("grad." + name)) << name;
    if (parameter.grad().defined()) expect_near(parameter.grad(), truth.at("grad." + name), name);
  }
  for (const auto& [name, tensor] : model->state_dict())
    expect_near(tensor, truth.at("after." + name), name);
}

TEST(WeightsWithoutGradients, AreTakenInTheGraphOfEvalMode) {
  ImportedModel model(fixture("asked.pt2"));
  model->forward(torch::ones({3, 2})).sum().backward();
  EXPECT_TRUE(model->named_parameters()["linear.weight"].grad().defined());
  model->eval();
  EXPECT_FALSE(model->forward(torch::ones({3, 2})).requires_grad());
}

TEST(WeightsWithoutGradients, AreRefusedWhereNothingTrainsThem) {
  EXPECT_THAT(
      [] { ImportedModel model(fixture("unreached.pt2")); },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("aten::linear in first (make_modes.py:"), HasSubstr("without gradients"),
                HasSubstr("the weight first."), HasSubstr("use_reentrant=False"))));
  EXPECT_NO_THROW(ImportedModel(fixture("detached.pt2")));
}

/// Python: y * y.detach() has the gradient y. As decomposed, it is that of y * y.
TEST(DecomposedGraph, NamesWhatMayHaveStoppedAGradient) {
  const NamedTensors truth = tensors_in("stopped.safetensors");
  ImportedModel model(fixture("stopped.pt2"));
  expect_near(model->forward(truth.at("x")), truth.at("train.0"));
  EXPECT_THAT(model->notes(), Contains(AllOf(HasSubstr("detach()"), HasSubstr("aten::alias"),
                                             HasSubstr("make_modes.py:"))));
  EXPECT_THAT(model->notes(),
              Contains(AllOf(HasSubstr("run_decompositions"), HasSubstr("torch.no_grad()"))));
  EXPECT_THAT(ImportedModel(fixture("small_decomposed.pt2"))->notes(),
              Not(Contains(HasSubstr("aten::alias"))));
}

}  // namespace
}  // namespace demi::imported

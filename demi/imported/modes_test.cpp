// Train and eval mode of exported networks, and of their parts. Python's values are from
// tests/fixtures/imported/make_modes.py.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "demi/core/error.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/imported_model.h"
#include "demi/imported/summary.h"
#include "demi/tensor/module_tensors.h"

namespace demi::imported {
namespace {

using checkpoint::NamedTensors;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_both_modes(const std::string& file, const std::string& of) {
  const NamedTensors truth = tensors_in(of + ".safetensors");
  ImportedModel model(fixture(file));
  model->eval();
  expect_near(model->forward(truth.at("x")), truth.at("eval.0"), file + " in eval mode");
  model->train();
  const at::Tensor y = model->forward(truth.at("x"));
  expect_near(y, truth.at("train.0"), file + " in train mode");
  y.square().sum().backward();
  for (const auto& [name, parameter] : tensor::parameters_once(*model))
    expect_near(parameter.grad(), truth.at("grad." + name), file + " " + name);
  for (const auto& [name, tensor] : model->state_dict())
    expect_near(tensor.to(torch::kDouble), truth.at("after." + name).to(torch::kDouble),
                file + " " + name);
}

/// An instance norm has a flag of another name; without running statistics it has no mode.
TEST(Modes, OfInstanceNormsArePythons) {
  expect_both_modes("instances.pt2", "instances");
  expect_both_modes("instances_eval.pt2", "instances");
}

/// One batch norm in two places, and one within a region.
TEST(Modes, OfABatchNormInTwoPlacesArePythons) {
  expect_both_modes("twice.pt2", "twice");
  expect_both_modes("twice_eval.pt2", "twice");
}

/// hand_written.pt2 was exported in eval mode, and one of its batch norms trains all the same.
TEST(Modes, AreNotThoseOfAFlagThatIsWrittenOut) {
  const NamedTensors truth = tensors_in("hand_written.safetensors");
  ImportedModel model(fixture("hand_written.pt2"));
  EXPECT_EQ(summarize(fixture("hand_written.pt2")).graphs[0].mode, "eval");
  model->eval();
  expect_near(model->forward(truth.at("x")), truth.at("eval.0"));
  model->train();
  const at::Tensor y = model->forward(truth.at("x"));
  EXPECT_EQ(model->named_buffers()["bn.num_batches_tracked"].item<int64_t>(), 1);
  EXPECT_FALSE(y.equal(model->forward(truth.at("x")))) << "dropout is on";
}

TEST(Modes, OfContradictoryFlagsStayThoseOfTheExport) {
  ImportedModel model(fixture("unclear.pt2"));
  EXPECT_THAT(model->notes(), Contains(HasSubstr("its mode is not known")));
  const at::Tensor x = torch::ones({4, 2});
  for (const bool on : {true, false}) {
    model->train(on);
    model->forward(x);
    EXPECT_EQ(model->named_buffers()["bn.num_batches_tracked"].item<int64_t>(), 0);
  }
}

TEST(Modes, OfAFileOfOneGraphAreSpokenOf) {
  for (const char* file : {"tiny.pt2", "keys.pt2", "containers.pt2"})
    EXPECT_THAT(ImportedModel(fixture(file))->notes(),
                Contains(AllOf(HasSubstr("one graph"), HasSubstr("demi_export.py"))));
  EXPECT_EQ(summarize(fixture("tiny.pt2")).graphs[0].mode, "unknown");
  EXPECT_EQ(summarize(fixture("rows.pt2")).graphs[0].mode, "train");
  EXPECT_EQ(summarize(fixture("rows.pt2")).graphs[1].mode, "eval");
}

bool same_statistics(ImportedModel& model, const NamedTensors& before) {
  bool are_same = true;
  for (const auto& item : model->named_buffers())
    are_same &= item.value().equal(before.at(item.key()));
  return are_same;
}

/// In each kind of file: two graphs, one of train mode, one of eval mode, a decomposed one.
TEST(FrozenPart, OfATrainingNetworkIsInEvalMode) {
  for (const char* file : {"script.pt2", "small.pt2", "small_eval.pt2", "small_decomposed.pt2"}) {
    const NamedTensors truth = tensors_in("small.safetensors");
    ImportedModel model(fixture(file));
    NamedTensors before;
    for (const auto& item : model->named_buffers()) before[item.key()] = item.value().clone();
    const at::Tensor x = truth.at("x");
    const auto logits = [&] {
      return model->call({x}).toGenericDict().at("logits").toTensor().detach().clone();
    };
    model->eval();
    const at::Tensor in_eval = logits();
    model->train();
    model->named_modules()["block.bn"]->eval();  // all that has a mode in these networks
    expect_near(logits(), in_eval, file);
    EXPECT_TRUE(same_statistics(model, before)) << file;
    model->train();
    model->named_modules()["block"]->eval();  // a part around it
    expect_near(logits(), in_eval, file);
    EXPECT_TRUE(same_statistics(model, before)) << file;
    model->train();
    EXPECT_FALSE(logits().equal(in_eval)) << file;
    EXPECT_FALSE(same_statistics(model, before)) << file;
  }
}

TEST(FrozenPart, OfTorchScriptIsInEvalMode) {
  ImportedModel model(fixture("script.pt"));
  const at::Tensor x = tensors_in("script.safetensors").at("x");
  const auto logits = [&] {
    return model->call({x}).toGenericDict().at("logits").toTensor().detach().clone();
  };
  model->eval();
  const at::Tensor in_eval = logits();
  model->train();
  model->named_modules()["block.bn"]->eval();
  EXPECT_TRUE(logits().equal(in_eval));
  model->named_modules()["block.bn"]->train();
  EXPECT_FALSE(logits().equal(in_eval));
}

/// A dropout has no parameters, so the part around it says its mode.
TEST(FrozenPart, HasNoDropout) {
  ImportedModel model(fixture("recurrent.pt2"));
  const at::Tensor x = tensors_in("recurrent.safetensors").at("x");
  model->named_modules()["lstm"]->eval();
  const at::Tensor y = model->forward(x);
  EXPECT_FALSE(model->forward(x).equal(y)) << "the dropout of forward itself";
  model->eval();
  const at::Tensor in_eval = model->forward(x);
  EXPECT_TRUE(model->forward(x).equal(in_eval));
}

TEST(FrozenPart, MayNotTrainInANetworkInEvalMode) {
  ImportedModel model(fixture("modes.pt2"));
  model->eval();
  model->named_modules()["bn"]->train();
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({4, 3}));
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("seen: bn"), HasSubstr("call train()"))));
}

TEST(Statistics, OfOneValueAreRefusedAsInPython) {
  ImportedModel model(fixture("modes.pt2")), instances(fixture("instances.pt2"));
  EXPECT_THAT(
      [&] {
        model->call({torch::ones({1, 3})});
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("aten::batch_norm in bn"), HasSubstr("make.py:"),
                                      HasSubstr("seen: (1, 3)"))));
  EXPECT_TRUE(model->named_buffers()["bn.running_var"].isfinite().all().item<bool>());
  EXPECT_NO_THROW(model->call({torch::ones({2, 3})}));
  EXPECT_THAT(
      [&] {
        instances->call({torch::ones({3, 2, 1})});
      },
      ThrowsMessage<UsageError>(HasSubstr("aten::instance_norm in tracked")));
  model->named_modules()["bn"]->eval();
  EXPECT_NO_THROW(model->call({torch::ones({1, 3})}));
  model->eval();
  EXPECT_NO_THROW(model->call({torch::ones({1, 3})}));
}

}  // namespace
}  // namespace demi::imported

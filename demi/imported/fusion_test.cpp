#include "demi/imported/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/imported_model.h"
#include "demi/tensor/module_tensors.h"

// tests/fixtures/imported/make.py, class Residual.
namespace demi::imported {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

ImportedModel residual(Fusing fusing) {
  ImportedModel model(fixture("residual.pt2"));
  model->fuse(fusing);
  return model;
}

/// Names of the operators of demi's and of batch norm that a thread runs, in their order.
class SeenOps {
 public:
  SeenOps() {
    current() = &names_;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& op) {
          const std::string name = op.name();
          if (name == "demi::batch_norm_relu" || name == "aten::batch_norm")
            current()->push_back(name);
          return std::unique_ptr<at::ObserverContext>();
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~SeenOps() { at::removeCallback(handle_); }
  int count(const std::string& name) const {
    return static_cast<int>(std::count(names_.begin(), names_.end(), name));
  }

 private:
  static std::vector<std::string>*& current() {
    static thread_local std::vector<std::string>* of_thread;
    return of_thread;
  }
  std::vector<std::string> names_;
  at::CallbackHandle handle_;
};

TEST(Fusion, NamesEachOperationThatItHolds) {
  ImportedModel model(fixture("residual.pt2"));
  EXPECT_THAT(model->fusible(),
              ElementsAre(AllOf(HasSubstr("aten::batch_norm in bn1"), HasSubstr("aten::relu"),
                                HasSubstr("aten::max_pool2d in pool")),
                          AllOf(HasSubstr("aten::batch_norm in bn2"), HasSubstr("aten::add_"),
                                HasSubstr("aten::relu")),
                          AllOf(HasSubstr("aten::batch_norm in bn3"), Not(HasSubstr("with"))),
                          AllOf(HasSubstr("aten::batch_norm in bn4"), Not(HasSubstr("with")))))
      << "bn3 has no ReLU of its own, and the result of bn4 is read twice";
}

TEST(Fusion, InFp32RunsWhatPythonRan) {
  const auto python = tensors_in("residual.safetensors");
  for (const Fusing fusing : {Fusing::low_precision, Fusing::never}) {
    ImportedModel model = residual(fusing);
    const SeenOps seen;
    expect_near(model->forward(python.at("x")), python.at("train"));
    EXPECT_EQ(seen.count("demi::batch_norm_relu"), 0);
    EXPECT_EQ(seen.count("aten::batch_norm"), 4);
  }
}

// Always: the same network, in another order of sums.
TEST(Fusion, ComputesWhatPythonDoes) {
  const auto python = tensors_in("residual.safetensors");
  ImportedModel model = residual(Fusing::always);
  {
    const SeenOps seen;
    const at::Tensor y = model->forward(python.at("x"));
    EXPECT_EQ(seen.count("demi::batch_norm_relu"), 4);
    expect_near(y, python.at("train"));
    y.square().mean().backward();
  }
  for (const auto& item : model->named_parameters())
    expect_near(item.value().grad(), python.at("grad." + item.key()), item.key());
  for (const auto& item : model->named_buffers())
    if (const auto after = python.find("after." + item.key()); after != python.end())
      expect_near(item.value(), after->second, item.key());
  model->eval();
  expect_near(model->forward(python.at("x")), python.at("eval"));
}

double distance(const at::Tensor& a, const at::Tensor& exact) {
  return (a.to(at::kDouble) - exact.to(at::kDouble)).norm().item<double>();
}

// In bf16 as near to FP32 as without, in a region and in a model of 16 bits.
TEST(Fusion, In16BitsIsAsExact) {
  const auto python = tensors_in("residual.safetensors");
  const auto run = [&](Fusing fusing, bool in_region) {
    ImportedModel model = residual(fusing);
    if (!in_region) to_precision(*model, at::kBFloat16);
    const SeenOps seen;
    at::Tensor y;
    {
      const Autocast region(c10::kCPU, at::kBFloat16);
      y = model->forward(python.at("x"));
    }
    EXPECT_EQ(seen.count("demi::batch_norm_relu"), fusing == Fusing::never ? 0 : 4);
    y.to(at::kFloat).square().mean().backward();
    double apart = 0;
    for (const auto& item : model->named_parameters())
      apart += distance(item.value().grad(), python.at("grad." + item.key()));
    return std::pair{distance(y, python.at("train")), apart};
  };
  for (const bool in_region : {true, false}) {
    const auto [output, gradients] = run(Fusing::low_precision, in_region);
    const auto [plain_output, plain_gradients] = run(Fusing::never, in_region);
    EXPECT_LE(output, 1.5 * plain_output);
    EXPECT_LE(gradients, 1.5 * plain_gradients);
  }
}

TEST(Fusion, IsKeptInACopyAndByTheMode) {
  const auto python = tensors_in("residual.safetensors");
  ImportedModel model = residual(Fusing::never);
  const auto copy = std::dynamic_pointer_cast<ImportedModelImpl>(model->clone());
  const Autocast region(c10::kCPU, at::kBFloat16);
  const SeenOps seen;
  copy->forward(python.at("x"));
  EXPECT_EQ(seen.count("demi::batch_norm_relu"), 0);
  copy->fuse(Fusing::low_precision);
  copy->eval();
  copy->forward(python.at("x"));
  EXPECT_EQ(seen.count("demi::batch_norm_relu"), 4);
}

// In channels_last the pooling belongs to it, and weights and pictures lie as the convolutions
// want them.
TEST(Fusion, OfPicturesInChannelsLast) {
  const auto python = tensors_in("residual.safetensors");
  ImportedModel model = residual(Fusing::always);
  model->to(at::MemoryFormat::ChannelsLast);
  for (const auto& item : model->named_parameters())
    if (item.value().dim() == 4) {
      EXPECT_TRUE(item.value().is_contiguous(at::MemoryFormat::ChannelsLast)) << item.key();
    }
  const auto copy = std::dynamic_pointer_cast<ImportedModelImpl>(model->clone());
  expect_near(copy->forward(python.at("x")), python.at("train"));
  const at::Tensor y = model->forward(python.at("x"));
  expect_near(y, python.at("train"));
  y.square().mean().backward();
  for (const auto& item : model->named_parameters())
    expect_near(item.value().grad(), python.at("grad." + item.key()), item.key());
  model->to(at::MemoryFormat::Contiguous);
  model->eval();
  ImportedModel other = residual(Fusing::never);
  other->eval();
  EXPECT_EQ(model->named_parameters()["conv1.weight"].strides(),
            other->named_parameters()["conv1.weight"].strides());
  EXPECT_THROW(ImportedModel(fixture("script.pt"))->to(at::MemoryFormat::ChannelsLast), UsageError);
}

TEST(Fusion, DoesNotWaitWhereWhatItReadsIsGoneOrWritten) {
  const auto python = tensors_in("not_to_wait.safetensors");
  ImportedModel model(fixture("not_to_wait.pt2"));
  model->fuse(Fusing::always);
  EXPECT_THAT(model->fusible(),
              ElementsAre(AllOf(HasSubstr("in bn1"), Not(HasSubstr("with"))),
                          AllOf(HasSubstr("in bn1"), HasSubstr("with aten::relu")),
                          AllOf(HasSubstr("in bn2"), Not(HasSubstr("with"))),
                          AllOf(HasSubstr("in bn3"), HasSubstr("with aten::relu")),
                          AllOf(HasSubstr("in bn4"), Not(HasSubstr("with")))))
      << "the second use of bn1 need not wait, and of a sum's two sides one has the ReLU";
  expect_near(model->forward(python.at("x")), python.at("train"));
  for (const auto& item : model->named_buffers())
    if (const auto after = python.find("after." + item.key()); after != python.end())
      expect_near(item.value(), after->second, item.key());
  model->eval();
  expect_near(model->forward(python.at("x")), python.at("eval"));
}

std::vector<at::Tensor> results_of(ImportedModel& model, const at::Tensor& x) {
  const c10::IValue results = model->call({x});
  std::vector<at::Tensor> all;
  for (const c10::IValue& one : results.toTupleRef().elements()) all.push_back(one.toTensor());
  return all;
}

TEST(Fusion, APoolingOfOnePlaceWithAStrideSubsamples) {
  const auto python = tensors_in("shortcut.safetensors");
  ImportedModel model(fixture("shortcut.pt2"));
  model->fuse(Fusing::always);
  EXPECT_THAT(model->fusible().at(1), AllOf(HasSubstr("in bn2"), HasSubstr("aten::max_pool2d")));
  const auto results = results_of(model, python.at("x"));
  expect_near(results[0], python.at("sum"));
  expect_near(results[1], python.at("means"));
}

// In a region the sum in place is of bf16, though the input that it adds is FP32.
TEST(Fusion, ASumInPlaceKeepsItsDtypeBesideAnother) {
  const auto python = tensors_in("shortcut.safetensors");
  for (const Fusing fusing : {Fusing::low_precision, Fusing::never}) {
    ImportedModel model(fixture("shortcut.pt2"));
    model->fuse(fusing);
    EXPECT_THAT(model->fusible().at(0), AllOf(HasSubstr("in bn1"), HasSubstr("aten::add_")));
    const Autocast region(c10::kCPU, at::kBFloat16);
    const auto results = results_of(model, python.at("x"));
    for (const auto& [i, name] : {std::pair{0, "sum"}, {1, "means"}}) {
      const at::Tensor& seen = results.at(static_cast<std::size_t>(i));
      const at::Tensor& in_python = python.at(std::string("region.") + name);
      EXPECT_EQ(seen.scalar_type(), in_python.scalar_type()) << name;
      EXPECT_LE(distance(seen, python.at(name)), 2 * distance(in_python, python.at(name))) << name;
    }
  }
}

// A frozen part's statistics do not move, though it runs as one operator.
TEST(Fusion, LeavesAFrozenPartAsItIs) {
  const auto python = tensors_in("residual.safetensors");
  ImportedModel model = residual(Fusing::always);
  model->named_modules()["bn1"]->eval();
  model->forward(python.at("x"));
  const auto buffers = model->named_buffers();
  EXPECT_TRUE(buffers["bn1.running_mean"].equal(python.at("first.bn1.running_mean")));
  EXPECT_FALSE(buffers["bn2.running_mean"].equal(python.at("first.bn2.running_mean")));
}

TEST(Fusion, AnErrorNamesAllItsOperations) {
  ImportedModel model = residual(Fusing::always);
  const at::NoGradGuard no_grad;
  model->named_buffers()["bn2.running_var"].set_data(at::ones({3}));
  model->eval();
  try {
    model->forward(at::randn({6, 3, 20, 18}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("aten::batch_norm in bn2"), HasSubstr("aten::add_")));
  }
}

}  // namespace
}  // namespace demi::imported

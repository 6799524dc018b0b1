#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>

#include "demi/autocast/autocast.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/core/memory_file_testing.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/imported_model.h"
#include "demi/imported/script_settings.h"
#include "demi/tensor/module_tensors.h"

namespace demi::imported {
namespace {

using checkpoint::NamedTensors;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

at::Tensor part_of(const c10::IValue& result, const std::string& key) {
  return result.toGenericDict().at(key).toTensor();
}

std::string read_bytes(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The same network from each writer.
class ScriptOfEachWriter : public testing::TestWithParam<std::string_view> {
 protected:
  NamedTensors truth = tensors_in("script.safetensors");
  ImportedModel model{fixture(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(PyTorch, ScriptOfEachWriter,
                         testing::Values("script.pt", "script_2_11.pt"));

TEST_P(ScriptOfEachWriter, ComputesAndTrainsAsPython) {
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const c10::IValue result = model->call({truth.at("x")});
    (part_of(result, "logits").square().mean() + part_of(result, "rest").sum()).backward();
    if (step == 0) {
      expect_near(part_of(result, "logits"), truth.at("train.logits"));
      for (const auto& [name, parameter] : tensor::parameters_once(*model))
        if (parameter.requires_grad())
          expect_near(parameter.grad(), truth.at("grad." + name), name);
    }
    optimizer.step();
  }
  // Python's state_dict has no buffer with persistent=False; TorchScript stores it as any other.
  for (const auto& [name, tensor] : model->state_dict())
    if (name != "block.mask") expect_near(tensor, truth.at("third." + name), name);
}

TEST_P(ScriptOfEachWriter, ComputesInEvalModeAsPython) {
  model->eval();
  const at::NoGradGuard no_grad;
  expect_near(part_of(model->call({truth.at("x")}), "logits"), truth.at("eval.logits"));
  EXPECT_TRUE(model->state_dict()
                  .at("block.bn.running_mean")
                  .equal(truth.at("first.block.bn.running_mean")));
}

TEST(Script, HasPythonsNamesAndTies) {
  ImportedModel model(fixture("script.pt"));
  const NamedTensors truth = tensors_in("script.safetensors");
  std::size_t known = 0;
  for (const auto& [name, tensor] : model->state_dict()) {
    const auto found = truth.find("first." + name);
    if (found == truth.end()) continue;
    EXPECT_TRUE(tensor.equal(found->second)) << name;
    ++known;
  }
  EXPECT_EQ(known, 11u);
  EXPECT_TRUE(
      model->named_parameters()["fc.weight"].is_same(model->named_parameters()["out.weight"]));
  EXPECT_EQ(model->parameters().size(), 7u) << "the tied one once";
  EXPECT_FALSE(model->named_parameters()["fc.bias"].requires_grad());
  EXPECT_THAT(model->notes(), IsEmpty());
}

TEST(Script, TakesNumbersByNameAndRefusesOtherInputs) {
  ImportedModel model(fixture("script.pt"));
  const at::Tensor x = torch::randn({2, 3, 5, 5});
  model->eval();
  const auto rest = [&](double scale) {
    return part_of(model->call({x}, {{"scale", scale}}), "rest");
  };
  expect_near(rest(4.0), 4 * rest(2.0));
  const auto refused = [&](std::vector<c10::IValue> inputs, auto... words) {
    EXPECT_THAT([&] { model->call(inputs); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("TorchScript"), HasSubstr(words)...)));
  };
  refused({}, "missing value for argument 'x'");
  refused({1.5}, "x");
  refused({torch::ones({2, 4, 5, 5})}, "make.py", "channels");
}

TEST(Script, ReturnsTheOutputThatIsSelected) {
  ImportedModel model(fixture("script.pt"));
  model->eval();
  const at::Tensor x = torch::randn({2, 3, 5, 5});
  EXPECT_THROW(model->forward(x), UsageError) << "two";
  model->select_output("rest");
  EXPECT_TRUE(model->forward(x).equal(part_of(model->call({x}), "rest")));
  model->select_output("scores");
  EXPECT_THAT([&] { model->forward(x); }, ThrowsMessage<UsageError>(HasSubstr("scores")));
  ImportedModel traced(fixture("script_traced.pt"));
  EXPECT_THAT([&] { traced->select_output("1"); }, ThrowsMessage<UsageError>(HasSubstr("Tensor")));
}

TEST(Script, CopiesAndConvertsItself) {
  ImportedModel model(fixture("script.pt"));
  model->eval();
  const at::Tensor x = torch::randn({2, 3, 5, 5});
  const at::Tensor before = part_of(model->call({x}), "logits");
  ImportedModel copy(std::dynamic_pointer_cast<ImportedModelImpl>(model->clone()));
  EXPECT_FALSE(copy->is_training());
  EXPECT_EQ(copy->parameters().size(), 7u);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : copy->parameters()) parameter.zero_();
  }
  EXPECT_FALSE(part_of(copy->call({x}), "logits").equal(before));
  EXPECT_TRUE(part_of(model->call({x}), "logits").equal(before)) << "apart from each other";
  EXPECT_FALSE(copy->named_parameters()["fc.bias"].requires_grad());
  EXPECT_TRUE(copy->named_parameters()["fc.weight"].requires_grad());
  model->to(torch::kDouble);
  EXPECT_EQ(part_of(model->call({x.to(torch::kDouble)}), "logits").scalar_type(), torch::kDouble);
  to_precision(*model, torch::kBFloat16);
  EXPECT_EQ(model->named_parameters()["fc.weight"].scalar_type(), torch::kBFloat16);
  EXPECT_EQ(model->named_parameters()["norm.weight"].scalar_type(), torch::kFloat);
  EXPECT_EQ(model->named_parameters()["block.bn.weight"].scalar_type(), torch::kFloat);
}

/// The results of these operations, in their order.
struct Ran {
  std::vector<std::string> ops;
};
thread_local Ran ran;

void note_op(const at::RecordFunction& op, at::ObserverContext*) {
  static const std::set<std::string_view> watched{
      "aten::conv2d",  "aten::batch_norm", "aten::relu", "aten::mul",    "aten::dropout",
      "aten::mean",    "aten::linear",     "aten::add",  "aten::matmul", "aten::layer_norm",
      "aten::softmax", "aten::cat",        "aten::pow",  "aten::sum"};
  if (!watched.contains(op.name()) || op.outputs().empty()) return;
  // Below an interpreter's call the stack holds the values of other operations.
  const c10::IValue& output = op.outputs().back();
  const std::string one =
      std::string(op.name()) + " " + c10::toString(output.toTensor().scalar_type());
  // TorchScript calls mul.Scalar, and that mul.Tensor.
  if (ran.ops.empty() || ran.ops.back() != one) ran.ops.push_back(one);
}

std::vector<std::string> ops_in_region(std::string_view file, bool trains) {
  ImportedModel model(fixture(file));
  model->fuse(Fusing::never);
  model->train(trains);
  const at::AutoGradMode gradients(trains);
  const auto run = [&] {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    model->call({torch::ones({2, 3, 5, 5})});
  };
  run();  // the process's first region tries out the weight cache, by operations of its own
  ran = {};
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(nullptr, note_op)
                                                     .needsOutputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
  // Three times: the profiling executor would fuse and specialize from the third run on.
  for (int i = 0; i < 3; ++i) run();
  at::removeCallback(handle);
  return ran.ops;
}

TEST(Script, ComputesInTheDtypesOfThePt2File) {
  for (const bool trains : {true, false}) {
    const std::vector<std::string> seen = ops_in_region("script.pt", trains);
    EXPECT_EQ(seen, ops_in_region("script.pt2", trains)) << trains;
    EXPECT_THAT(seen, testing::Contains("aten::conv2d BFloat16"));
    EXPECT_THAT(seen, testing::Contains("aten::pow Float"));
  }
}

TEST(Script, PutsTheSettingsOfTheProcessBack) {
  const bool autocast = torch::jit::autocastEnabled(),
             profiling = torch::jit::getProfilingMode().load();
  ImportedModel model(fixture("script.pt"));
  for (const bool was : {false, true}) {
    torch::jit::setAutocastMode(was);
    torch::jit::getProfilingMode() = was;
    model->call({torch::ones({2, 3, 5, 5})});
    EXPECT_THROW(model->call({torch::ones({2, 4, 5, 5})}), UsageError);
    EXPECT_EQ(torch::jit::autocastEnabled(), was);
    EXPECT_EQ(torch::jit::getProfilingMode().load(), was);
    {
      const ScriptSettings outer;
      { const ScriptSettings inner; }
      EXPECT_FALSE(torch::jit::autocastEnabled()) << "another one lives";
      EXPECT_FALSE(torch::jit::getProfilingMode().load());
    }
    EXPECT_EQ(torch::jit::autocastEnabled(), was);
    EXPECT_EQ(torch::jit::getProfilingMode().load(), was);
  }
  torch::jit::setAutocastMode(autocast);
  torch::jit::getProfilingMode() = profiling;
}

TEST(Script, SaysThatATracedOneHasItsModeFixed) {
  ImportedModel model(fixture("script_traced.pt"));
  EXPECT_THAT(model->notes(), ElementsAre(AllOf(HasSubstr("1 aten::batch_norm"),
                                                HasSubstr("1 aten::dropout"), HasSubstr("fixed"))));
}

TEST(Script, IsRefusedWhereItCannotBeTrained) {
  const auto refused = [](std::string_view file, auto... words) {
    try {
      ImportedModel model(fixture(file));
      ADD_FAILURE() << file << " was read";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(words)...));
    }
  };
  refused("script_region.pt", "make.py:", "autocast", "demi_export.py");
  refused("script_lite.ptl", "lite interpreter", "torch.jit.save");
}

TEST(ScriptDamage, OfACutIsRefused) {
  const std::string whole = read_bytes(fixture("script_traced.pt"));
  for (std::size_t length = 0; length < whole.size(); length += 13) {
    const MemoryFile file(std::string_view(whole).substr(0, length));
    EXPECT_THROW(ImportedModel model(file.path()), DataError) << length;
  }
}

/// LibTorch's reader compares no checksum, neither of stored records nor of compressed ones.
TEST(ScriptDamage, OfAChecksumIsRefused) {
  const std::string whole = read_bytes(fixture("script.pt")), entry = "PK\x01\x02";
  std::size_t entries = 0, compressed = 0;
  for (std::size_t at = 0; (at = whole.find(entry, at)) != std::string::npos; ++at) {
    ++entries;
    compressed += whole[at + 10] != 0 ? 1 : 0;
    std::string damaged = whole;
    damaged[at + 16] = static_cast<char>(damaged[at + 16] ^ 1);
    const MemoryFile file(damaged);
    EXPECT_THAT([&] { ImportedModel model(file.path()); },
                ThrowsMessage<DataError>(HasSubstr("checksum")))
        << entries;
  }
  EXPECT_GT(compressed, 5u);
  EXPECT_GT(entries, compressed + 10);
}

TEST(ScriptDamage, OfAByteIsRefusedOrHarmless) {
  const std::string whole = read_bytes(fixture("script_traced.pt"));
  const at::Tensor x = torch::randn({4, 3});
  const auto output = [&](ImportedModel model) {
    const at::NoGradGuard no_grad;
    return model->call({x}).toTensor();
  };
  const at::Tensor expected = output(ImportedModel(fixture("script_traced.pt")));
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += 7) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    const MemoryFile file(damaged);
    try {
      EXPECT_TRUE(output(ImportedModel(file.path())).equal(expected)) << "byte " << at;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace demi::imported

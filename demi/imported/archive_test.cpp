#include "demi/imported/archive.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <fstream>
#include <random>
#include <set>

#include "demi/core/error.h"
#include "demi/core/memory_file_testing.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/python_place.h"
#include "demi/imported/summary.h"
#include "demi/imported/zip_testing.h"

namespace demi::imported {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const checkpoint::NamedTensors& truth() {
  static const checkpoint::NamedTensors tensors = tensors_in("small.safetensors");
  return tensors;
}

class ArchiveOfEachWriter : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(PyTorch, ArchiveOfEachWriter,
                         testing::Values("small.pt2", "small_2_11.pt2", "small_eval.pt2",
                                         "small_decomposed.pt2"));

TEST_P(ArchiveOfEachWriter, HasTheWeightsThatPythonSaved) {
  const Archive archive(fixture(GetParam()));
  TensorReader tensors = archive.tensors();
  std::size_t count = 0;
  for (const auto& [name, stored] : archive.weights("model")) {
    const at::Tensor tensor = tensors.read(stored);
    EXPECT_TRUE(tensor.equal(truth().at("first." + name))) << name;
    EXPECT_EQ(stored.is_parameter, tensor.is_floating_point() && !name.starts_with("block.bn.run"));
    ++count;
  }
  EXPECT_EQ(count, 9u);  // of Small.state_dict()
  EXPECT_TRUE(tensors.read(archive.constants("model").at("block.mask"))
                  .equal(at::tensor({1.0F, 0.5F, 2.0F, 1.0F})));
}

TEST_P(ArchiveOfEachWriter, KnowsTheSignature) {
  const Archive archive(fixture(GetParam()));
  const Program& program = archive.programs().at(0);
  EXPECT_EQ(program.in_spec.leaves, 1u);
  EXPECT_EQ(program.out_spec.kind, TreeSpec::Kind::dict);
  EXPECT_EQ(program.out_spec.keys, (std::vector<TreeSpec::Key>{"logits", "rest"}));
  EXPECT_EQ(program.out_spec.children[1].kind, TreeSpec::Kind::tuple);
  EXPECT_EQ(program.argument_names, std::vector<std::string>{"x"});
  ASSERT_EQ(program.ranges.size(), 1u);
  EXPECT_EQ(program.ranges.begin()->second.least, 2);
  EXPECT_EQ(program.ranges.begin()->second.most, INT64_MAX);
  const TensorMeta& x = program.graph.tensors.at("x");
  EXPECT_FALSE(x.sizes[0].expression.empty());
  EXPECT_EQ(x.sizes[1].fixed, 3);
}

TEST(Archive, HasOneTensorForNamesThatShareAStorage) {
  const Archive archive(fixture("small.pt2"));
  TensorReader tensors = archive.tensors();
  const StoredTensors& weights = archive.weights("model");
  EXPECT_TRUE(
      tensors.read(weights.at("fc.weight")).is_same(tensors.read(weights.at("out.weight"))));
  EXPECT_FALSE(weights.at("fc.bias").meta.requires_grad);
}

TEST(Archive, KnowsModuleAndPythonLineOfEachNode) {
  const Archive archive(fixture("small.pt2"));
  const Node& conv = archive.programs()[0].graph.nodes.at(1);
  EXPECT_EQ(conv.target, "torch.ops.aten.conv2d.default");
  EXPECT_EQ(conv.place.module, "block.conv");
  EXPECT_EQ(conv.place.type, "torch.nn.modules.conv.Conv2d");
  EXPECT_THAT(conv.place.line, MatchesRegex("make.py:[0-9]+ in forward"));
}

TEST(Archive, KnowsWhatADecomposedGraphWritesTo) {
  const Archive archive(fixture("small_decomposed.pt2"));
  const Program& program = archive.programs().at(0);
  EXPECT_FALSE(program.is_training_dialect);
  std::set<std::string> written;
  for (const OutputSpec& output : program.outputs)
    if (output.kind == OutputKind::buffer) written.insert(output.target);
  EXPECT_EQ(written, (std::set<std::string>{"block.bn.running_mean", "block.bn.running_var",
                                            "block.bn.num_batches_tracked"}));
  EXPECT_TRUE(Archive(fixture("small.pt2")).programs()[0].is_training_dialect);
}

TEST(Summarize, SaysWhatPythonSaysOfTheNetwork) {
  const FileSummary file = summarize(fixture("small.pt2"));
  EXPECT_EQ(file.torch_version, "2.15.0+cu132");
  ASSERT_EQ(file.graphs.size(), 1u);
  EXPECT_EQ(file.graphs[0].mode, "train");
  EXPECT_THAT(file.graphs[0].inputs, ElementsAre(MatchesRegex("x: Float \\(s[0-9]+, 3, 5, 5\\)")));
  EXPECT_EQ(file.graphs[0].outputs, 2u) << "a number is none";
  EXPECT_EQ(file.graphs[0].operators.at("aten::linear"), 2u);
  std::map<std::string, TensorSummary> by_name;
  for (const TensorSummary& tensor : file.tensors) by_name[tensor.name] = tensor;
  EXPECT_EQ(by_name.at("out.weight").same_as, "fc.weight");
  EXPECT_TRUE(by_name.at("fc.weight").is_trainable);
  EXPECT_FALSE(by_name.at("fc.bias").is_trainable);
  EXPECT_FALSE(by_name.at("block.bn.running_mean").is_parameter);
  EXPECT_THAT(by_name.at("block.conv.weight").sizes, ElementsAre(4, 3, 3, 3));
}

/// The identity of a file after a change of one of its records.
std::string identity_after(std::string_view file, const std::string& record, std::string_view from,
                           std::string_view to) {
  Contents contents = contents_of(fixture(file));
  std::string& text = contents.at(record);
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no such text: " + std::string(from));
  text.replace(at, from.size(), to);
  const MemoryFile changed(zip_of(contents));
  return summarize(changed.path()).identity;
}

TEST(Identity, IsTheSameForTheSameNetwork) {
  const std::string own = summarize(fixture("small.pt2")).identity;
  EXPECT_THAT(own, MatchesRegex("[0-9a-f]{16}"));
  const std::string model = "models/model.json";
  EXPECT_EQ(identity_after("small.pt2", model, "make.py", "moved.py"), own) << "a line";
  EXPECT_EQ(identity_after("small.pt2", model, "2.15.0", "2.16.0"), own) << "the exporter";
  EXPECT_EQ(identity_after("small.pt2", "data/weights/weight_0", std::string_view(), "1"), own)
      << "a weight";
  Contents renamed = contents_of(fixture("small.pt2"));
  std::string& text = renamed.at(model);
  for (std::size_t at = 0; (at = text.find("\"conv2d\"", at)) != std::string::npos;)
    text.replace(at, 8, "\"product\"");
  const MemoryFile file(zip_of(renamed));
  EXPECT_EQ(summarize(file.path()).identity, own) << "a name of the exporter's";
  EXPECT_EQ(summarize(fixture("small_2_11.pt2")).identity, own) << "exported by PyTorch 2.11";
}

TEST(Identity, IsAnotherOneForAnotherNetwork) {
  std::set<std::string> seen;
  for (const char* file : {"small.pt2", "small_eval.pt2", "small_decomposed.pt2", "tiny.pt2",
                           "modes.pt2", "pictures.pt2", "pictures_loss.pt2", "rows.pt2"})
    seen.insert(summarize(fixture(file)).identity);
  EXPECT_EQ(seen.size(), 8u);
  const std::string model = "models/model.json";
  seen.insert(identity_after("small.pt2", model, "aten.relu.default", "aten.tanh.default"));
  seen.insert(identity_after("small.pt2", model, "\"as_float\": 2.0", "\"as_float\": 2.5"));
  EXPECT_EQ(seen.size(), 10u) << "an operation, a number";
  Contents renamed = contents_of(fixture("small.pt2"));
  std::string& text = renamed.at(model);
  for (std::size_t at = 0; (at = text.find("logits", at)) != std::string::npos;)
    text.replace(at, 6, "scores");
  const MemoryFile other(zip_of(renamed));
  seen.insert(summarize(other.path()).identity);
  EXPECT_EQ(seen.size(), 11u) << "a name of the result";
  // The values of a constant; its bytes are the graph's.
  Contents contents = contents_of(fixture("small.pt2"));
  for (auto& [name, content] : contents)
    if (name.starts_with("data/constants/") && !name.ends_with(".json")) {
      std::string before = std::exchange(content, std::string(content.size(), '\1'));
      const MemoryFile file(zip_of(contents));
      EXPECT_TRUE(seen.insert(summarize(file.path()).identity).second) << name;
      content = std::move(before);
    }
  EXPECT_EQ(seen.size(), 13u) << "a constant and a buffer that is not saved";
}

TEST(Summarize, NamesTheTensorsThatAnOperationReads) {
  const auto operations = summarize(fixture("normalised.pt2")).graphs.at(0).operations;
  std::map<std::string, std::vector<std::string>> read;
  for (const OperationSummary& one : operations)
    if (!one.tensors.empty()) read[one.module + " " + one.op] = one.tensors;
  EXPECT_THAT(read.at("linear aten::linear"), ElementsAre("linear.weight", "linear.bias"));
  EXPECT_THAT(read.at("inner aten::layer_norm"), ElementsAre("inner.weight", "inner.bias"))
      << "within a region";
}

TEST(Summarize, KnowsTheModeAndTheDialect) {
  EXPECT_EQ(summarize(fixture("small_eval.pt2")).graphs[0].mode, "eval");
  EXPECT_EQ(summarize(fixture("tiny.pt2")).graphs[0].mode, "unknown");
  EXPECT_TRUE(summarize(fixture("small_decomposed.pt2")).graphs[0].is_decomposed);
  EXPECT_FALSE(summarize(fixture("small.pt2")).graphs[0].is_decomposed);
}

/// Nothing, if the file is refused with a DataError; what differs from tiny.pt2, if it is read.
std::string difference(std::string_view bytes) {
  const MemoryFile file(bytes);
  try {
    const Archive archive(file.path());
    if (archive.programs().size() != 1) return "another number of graphs";
    const Program& program = archive.programs()[0];
    at::Tensor weight = archive.tensors().read(archive.weights("model").at("weight"));
    if (!weight.equal(at::tensor({1.0F, -2.0F, 0.5F, 3.0F}).view({2, 2}))) return "other weights";
    if (program.graph.nodes.size() != 1 ||
        program.graph.nodes[0].target != "torch.ops.aten.linear.default")
      return "another graph";
  } catch (const DataError&) {
  }
  return "";
}

TEST(ArchiveDamage, OfAnyByteIsRefusedOrHarmless) {
  const std::string whole = bytes_of(fixture("tiny.pt2"));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0xFF : 1 << (at / 2 % 8)));
    EXPECT_EQ(difference(damaged), "") << "byte " << at;
  }
}

TEST(ArchiveDamage, OfAnyCutIsRefused) {
  const std::string whole = bytes_of(fixture("tiny.pt2"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const MemoryFile file(std::string_view(whole).substr(0, length));
    EXPECT_THROW(Archive archive(file.path()), DataError) << length;
  }
}

TEST(ArchiveDamage, WithARightChecksumEndsInADataErrorOrAProgram) {
  const Contents whole = contents_of(fixture("tiny.pt2"));
  std::mt19937 random(1);
  const std::string_view pieces[] = {"9", "-1", "null", "[", "{}", "\"", "1e99", ":", "true", ""};
  int refused = 0, read = 0;
  for (int i = 0; i < 1000; ++i) {
    Contents changed = whole;
    std::string& text =
        changed.at(i % 3 == 0 ? "data/weights/model_weights_config.json" : "models/model.json");
    const std::size_t at = random() % text.size();
    text.replace(at, random() % 3, pieces[random() % std::size(pieces)]);
    const MemoryFile file(zip_of(changed));
    try {
      const Archive archive(file.path());
      TensorReader tensors = archive.tensors();
      for (const auto& [name, stored] : archive.weights("model")) tensors.read(stored).sum();
      ++read;
    } catch (const DataError&) {
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << i << " ends in another error: " << error.what();
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 100);
}

/// nlohmann's dump() recurses: 100,000 levels ended the process.
TEST(ArchiveDamage, OfTextThatIsNestedTooDeepEndsInADataError) {
  for (const char* record : {"models/model.json", "data/weights/model_weights_config.json"})
    for (const std::size_t depth : {513UL, 100'000UL}) {
      Contents contents = contents_of(fixture("tiny.pt2"));
      contents.at(record) = std::string(depth, '[') + std::string(depth, ']');
      const MemoryFile file(zip_of(contents));
      EXPECT_THAT([&] { Archive archive(file.path()); },
                  testing::ThrowsMessage<DataError>(HasSubstr("more than 512 deep")));
    }
}

std::string changed(std::string_view record, std::string_view from, std::string_view to) {
  Contents contents = contents_of(fixture("tiny.pt2"));
  std::string& text = contents.at(std::string(record));
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no such text: " + std::string(from));
  return zip_of((text.replace(at, from.size(), to), contents));
}

void expect_refused(const std::string& bytes, const testing::Matcher<const char*>& message) {
  const MemoryFile file(bytes);
  try {
    const Archive archive(file.path());
    ADD_FAILURE() << "was read";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), message);
  }
}

TEST(Archive, RefusesWhatDoesNotFit) {
  constexpr std::string_view kConfig = "data/weights/model_weights_config.json",
                             kModel = "models/model.json";
  expect_refused(changed(kConfig, "{\"as_int\": 2}", "{\"as_int\": 3}"),
                 HasSubstr("does not lie in the 16 bytes"));
  expect_refused(changed(kConfig, "{\"as_int\": 2}", "{\"as_int\": -2}"), HasSubstr("no size"));
  expect_refused(changed(kConfig, "{\"as_int\": 2}", "{\"as_int\": 9223372036854775807}"),
                 AllOf(HasSubstr("weight"), HasSubstr("impossible shape")));
  expect_refused(changed(kConfig, "{\"as_int\": 1}", "{\"as_int\": 4611686018427387904}"),
                 HasSubstr("does not lie"));
  expect_refused(changed(kConfig, "weight_0", "weight_1"), HasSubstr("no bytes in the archive"));
  expect_refused(changed(kConfig, "\"use_pickle\": false", "\"use_pickle\": true"),
                 HasSubstr("nothing of a file is unpickled"));
  expect_refused(changed(kConfig, "\"weight\": {", "\"other\": {"),
                 HasSubstr("does not hold; seen: weight"));
  expect_refused(changed(kModel, "\"major\": 8", "\"major\": 9"),
                 AllOf(HasSubstr("9"), HasSubstr("accepted: 8")));
  expect_refused(
      changed(kModel, "{\"name\": \"p_weight\"}}, \"kind\"", "{\"name\": \"q_weight\"}}, \"kind\""),
      HasSubstr("q_weight, which nothing made"));
  expect_refused(changed(kModel, "builtins.tuple", "my.Batch"),
                 AllOf(HasSubstr("my.Batch"), HasSubstr("namedtuple")));
}

TEST(Archive, SaysWhatAnotherFileIs) {
  const auto zip = [](std::initializer_list<std::string> names) {
    Contents contents;
    for (const std::string& name : names) contents[name] = "x";
    return zip_of(contents);
  };
  using namespace std::string_literals;
  expect_refused(zip({"m/data/aotinductor/model/a.so", "m/archive_format"}),
                 AllOf(HasSubstr("AOTInductor"), HasSubstr("demi_export.py")));
  expect_refused(zip({"serialized_exported_program.json", "version"}),
                 AllOf(HasSubstr("older form"), HasSubstr("torch.export.load")));
  expect_refused(zip({"net/code/a.py", "net/constants.pkl", "net/data.pkl"}),
                 HasSubstr("TorchScript"));
  expect_refused(zip({"weights/data.pkl", "weights/data/0"}), HasSubstr("torch.save"));
  expect_refused(zip({"notes.txt"}), HasSubstr("zip archive of another kind"));
  expect_refused("\x08\x08\x12\x07pytorch"s, HasSubstr("ONNX"));
  expect_refused("\x10\0\0\0\0\0\0\0{\"weight\": 1}  "s, HasSubstr("safetensors"));
  expect_refused("\x80\x02}q\0."s, HasSubstr("pickle"));
  expect_refused("", HasSubstr("empty"));
  expect_refused("import torch\n", HasSubstr("a text"));
}

TEST(PythonLine, IsTheInnermostOneOutsideOfPyTorch) {
  EXPECT_EQ(python_line("File \"nets/net.py\", line 15, in forward\n    y = self.conv(x)\n"
                        "  File \"/usr/lib/python3/dist-packages/torch/nn/modules/conv.py\", line "
                        "565, in forward\n    return self._conv_forward(x)"),
            "nets/net.py:15 in forward");
  EXPECT_EQ(python_line("File \"torch/fx/passes/runtime_assert.py\", line 24, in insert"),
            "torch/fx/passes/runtime_assert.py:24 in insert");
  EXPECT_EQ(python_line("nothing"), "");
  EXPECT_EQ(python_line("File \"<string>\", line 1, in <lambda>"), "") << "no file that has it";
  EXPECT_EQ(python_line("File \"net.py\", line 2, in f\nFile \"<string>\", line 1, in g"),
            "net.py:2 in f");
}

TEST(PythonModule, IsTheInnermostOfTheStack) {
  using Names = std::pair<std::string, std::string>;
  EXPECT_EQ(python_module("L__self__,,__main__.Net;L__self__b.c,b.c,torch.nn.Conv2d"),
            Names("b.c", "torch.nn.Conv2d"));
  EXPECT_EQ(python_module("L__self__,,__main__.Net"), Names("", "__main__.Net"));
  EXPECT_EQ(python_module("k,L['self'].b.c@1,T"), Names("b.c", "T"));
  EXPECT_EQ(python_module(""), Names());
}

}  // namespace
}  // namespace demi::imported

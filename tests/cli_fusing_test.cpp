// What of a network from Python runs as one operator, and in which memory format.
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/source_dir_testing.h"
#include "demi/imported/zip_testing.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using nlohmann::json;

// tests/fixtures/imported/make.py: Pictures, whose batch norm has a ReLU behind it.
class FusingProgram : public Cli {
 protected:
  void SetUp() override { setenv("DEMI_CACHE", (folder_ / "cache").c_str(), 1); }

  std::string network() const {
    return (demi::source_dir() / "tests/fixtures/imported/pictures.pt2").string();
  }

  /// The same with a view behind the ReLU that joins channels and pixels.
  std::string network_with_view() const {
    auto contents = demi::imported::contents_of(network());
    for (const char* name : {"models/model.json", "models/eval.json"}) {
      json document = json::parse(contents.at(name));
      json& nodes = document["graph_module"]["graph"]["nodes"];
      std::vector<json> all;
      for (json& node : nodes) {
        if (node["name"] == "mean") {
          all.push_back(view_of(node, "relu", "flat", {-1, 4 * 15 * 15}));
          all.push_back(view_of(node, "flat", "again", {-1, 4, 15, 15}));
          node["inputs"][0]["arg"]["as_tensor"]["name"] = "again";
        }
        all.push_back(node);
      }
      nodes = all;
      json& tensors = document["graph_module"]["graph"]["tensor_values"];
      tensors["flat"] = tensors["again"] = tensors["relu"];
      contents.at(name) = document.dump();
    }
    const fs::path file = folder_ / "view.pt2";
    std::ofstream(file, std::ios::binary) << demi::imported::zip_of(contents);
    return file.string();
  }

  Outcome train(const std::string& file, const Words& more) {
    const fs::path data = folder_ / "data";
    if (!fs::exists(data)) small_recipes::write_data("cifar10", data);
    Words words{"train",        file,      "--model-output",    "logits",
                "--data",       "cifar10", "--data-dir",        data.string(),
                "--batch-size", "4",       "--test-batch-size", "4",
                "--device",     "cpu",     "--steps",           "3"};
    words.insert(words.end(), more.begin(), more.end());
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }

  std::string trained_file(int number) const {
    return (folder_ / "runs" / ("train-pictures-00" + std::to_string(number)) / "model.safetensors")
        .string();
  }

  bool same_weights(int a, int b) const {
    const auto first = demi::checkpoint::load(trained_file(a)).model,
               second = demi::checkpoint::load(trained_file(b)).model;
    for (const auto& [name, tensor] : first)
      if (!tensor.equal(second.at(name))) return false;
    return true;
  }

  std::string predicted(int number, const Words& more) {
    Words words{"predict", trained_file(number),
                (demi::source_dir() / "tests/fixtures/pictures").string(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, /*allow_exceptions=*/false)["predictions"].dump();
  }

  void refused(const Words& words, const std::vector<std::string>& said) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    for (const std::string& text : said) EXPECT_THAT(outcome.err, HasSubstr(text));
  }

 private:
  static json view_of(const json& like, const std::string& from, const std::string& to,
                      const std::vector<int>& sizes) {
    json node = like;
    node["target"] = "torch.ops.aten.view.default";
    node["name"] = to;
    node["inputs"][0]["arg"]["as_tensor"]["name"] = from;
    node["inputs"][1]["name"] = "size";
    node["inputs"][1]["arg"]["as_ints"] = sizes;
    node["outputs"][0]["as_tensor"]["name"] = to;
    return node;
  }
};

TEST_F(FusingProgram, FusesWhatItIsTold) {
  EXPECT_THAT(train(network(), {}).err, HasSubstr("1 batch norms"));
  EXPECT_THAT(train(network(), {"--fuse", "never"}).err, Not(HasSubstr("batch norms, with")));
  EXPECT_THAT(train(network(), {"--fuse", "always"}).err, HasSubstr("also in FP32"));
  EXPECT_TRUE(same_weights(1, 2)) << "FP32 is Python's";
  EXPECT_FALSE(same_weights(1, 3));
  EXPECT_EQ(predicted(1, {}), predicted(1, {"--fuse", "never"}));
  EXPECT_NE(predicted(1, {}), predicted(1, {"--fuse", "always"}));
  EXPECT_EQ(predicted(3, {}), predicted(3, {"--fuse", "always"})) << "as in training";
}

TEST_F(FusingProgram, RunsInChannelsLast) {
  EXPECT_THAT(train(network(), {"--channels-last"}).err, Not(HasSubstr("not in channels_last")));
  const std::string file = network_with_view();
  EXPECT_THAT(train(file, {}).err, Not(HasSubstr("channels_last")));
  const Outcome refused = train(file, {"--channels-last"});
  EXPECT_THAT(refused.err, HasSubstr("not in channels_last"));
  EXPECT_THAT(refused.err, HasSubstr("aten::view"));
  EXPECT_THAT(refused.err, HasSubstr("make.py"));
}

TEST_F(FusingProgram, ShowsWhatIsFused) {
  const Outcome text = run({"inspect", network()});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("aten::batch_norm in bn (make.py"));
  EXPECT_THAT(text.out, HasSubstr("with aten::relu"));
  const json found = json::parse(run({"inspect", network(), "--json"}).out);
  ASSERT_EQ(found["graphs"].size(), 2U);
  for (const json& graph : found["graphs"]) EXPECT_EQ(graph["fusible"].size(), 1U);
}

TEST_F(FusingProgram, RefusesWhatDoesNothing) {
  refused({"train", "mlp", "--fuse", "never"}, {"does nothing in this run", ".pt2"});
  refused({"train", "fashion-cnn", "--channels-last"}, {"does nothing in this run", ".pt2"});
  const std::string rows = (demi::source_dir() / "tests/fixtures/imported/rows.pt2").string();
  refused(
      {"train", rows, "--data", "synthetic-rows", "--out", "2", "--loss", "mse", "--channels-last"},
      {"does nothing in this run", "pictures"});
  refused({"train", network(), "--data", "cifar10", "--fuse", "sometimes"},
          {"low-precision", "never"});
}

}  // namespace
}  // namespace cli_testing

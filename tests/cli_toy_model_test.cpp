// A model is its source and one line of lab/models/list.h. What a source brings is here, with two
// settings of its own, and the program knows it everywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lab/models/more_models.h"
#include "lab/models/own_settings.h"
#include "lab/workload/model_file.h"
#include "tests/cli_testing.h"

namespace demi::models {
namespace {

enum class ToyForm { plain, doubled };

struct ToyOptions {
  int64_t in = 4, out = 4, width = 3;
  ToyForm form = ToyForm::plain;
};

class ToyImpl : public torch::nn::Module {
 public:
  explicit ToyImpl(const ToyOptions& options)
      : factor_(options.form == ToyForm::doubled ? 2 : 1),
        down_(register_module("down", torch::nn::Linear(options.in, options.width))),
        up_(register_module("up", torch::nn::Linear(options.width, options.out))) {}

  at::Tensor forward(const at::Tensor& input) {
    return up_->forward(down_->forward(input) * factor_);
  }

 private:
  double factor_;
  torch::nn::Linear down_, up_;
};
TORCH_MODULE(Toy);

ModelInfo toy_model() {
  static const OwnSettings<ToyOptions> own(
      {},
      {{.setting = values::whole("toy-width", &ToyOptions::width, 1, "width in the middle", 64)},
       {.setting = values::one_of<ToyOptions, ToyForm>(
            "toy-form", &ToyOptions::form,
            {{"plain", ToyForm::plain}, {"doubled", ToyForm::doubled}}, "plain or doubled"),
        .decides = Decides::result}});
  return {.name = "toy",
          .title = "two linear layers",
          .reads = data::Kind::rows,
          .make =
              [](const ModelOptions& given) {
                ToyOptions options = own.read(given.settings);
                options.in = given.in.value_or(options.in);
                options.out = given.out.value_or(options.out);
                return train::network(Toy(options));
              },
          .settings = own.over_texts(),
          .head = "up"};
}

// Instead of its line in the list.
const bool kIsAdded = (add_model(toy_model()), true);

}  // namespace
}  // namespace demi::models

namespace {

using namespace cli_testing;
using nlohmann::json;
using ::testing::AllOf;

class ToyModel : public Cli {
 protected:
  Outcome train(const std::string& folder, const Words& more) {
    Words words{"train",        "mlp",
                "--model",      "toy",
                "--in",         "8",
                "--out",        "4",
                "--batch-size", "4",
                "--batches",    "2",
                "--epochs",     "1",
                "--device",     "cpu",
                "--lr",         "0.001",
                "--optimizer",  "sgd",
                "--run-dir",    (folder_ / folder).string()};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  std::string run_of(const std::string& folder) { return folder_ / folder / "train-mlp-001"; }
  json config_of(const std::string& folder) {
    return json::parse(slurp(fs::path(run_of(folder)) / "config.json"));
  }
};

TEST_F(ToyModel, HasItsSettingsInHelpCompletionManualAndEnvironment) {
  ASSERT_TRUE(demi::models::kIsAdded);
  const std::string help = run({"train", "--help"}).out;
  EXPECT_THAT(help, AllOf(HasSubstr("gpt or toy;"), HasSubstr("--toy-width INT"),
                          HasSubstr("toy: width in the middle [3]"),
                          HasSubstr("toy: plain or doubled [plain]")));
  EXPECT_LT(help.find("--toy-width"), help.find("--pool")) << "among the settings of rows";
  EXPECT_THAT(run({"completion", "bash"}).out, HasSubstr("--toy-width"));
  EXPECT_THAT(run({"bench", "memory", "--help"}).out, HasSubstr("--toy-width"));
  const Outcome outcome = run({"train", "mlp", "--model", "toy", "--toy-width", "65", "--dry-run"});
  EXPECT_THAT(outcome.err, HasSubstr("[--toy-width] too large; seen: 65; accepted: 1 to 64"));
  EXPECT_THAT(run({"train", "mlp", "--model", "toy", "--dry-run"},
                  [] { setenv("DEMI_TOY_WIDTH", "none", 1); })
                  .err,
              HasSubstr("[DEMI_TOY_WIDTH] not a number"));
}

TEST_F(ToyModel, IsTrainedWithThemAndItsFilesSayThem) {
  ASSERT_EQ(train("run", {"--toy-width", "5", "--toy-form", "doubled"}).code, 0);
  EXPECT_EQ(config_of("run")["toy_width"], 5);
  EXPECT_EQ(config_of("run")["toy_form"], "doubled");
  const auto texts = demi::workload::read_model_texts(run_of("run") + "/model.safetensors");
  EXPECT_EQ(texts.description->network.model_settings,
            (demi::values::Texts{{"toy-form", "doubled"}, {"toy-width", "5"}}));
  const auto file = json_of({"inspect", run_of("run") + "/model.safetensors"});
  EXPECT_THAT(file.dump(), HasSubstr("[5,8]"));

  ASSERT_EQ(train("plain", {}).code, 0);
  EXPECT_EQ(config_of("plain")["toy_width"], 3);
}

TEST_F(ToyModel, IsResumedWithItsOwnSettingsAlone) {
  ASSERT_EQ(train("run", {"--toy-width", "5"}).code, 0);
  const std::string run_folder = run_of("run");
  const Outcome other = run({"train", "--resume", run_folder, "--toy-width", "6"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("--toy-width"));
  EXPECT_EQ(run({"train", "--resume", run_folder, "--epochs", "2"}).code, 0);
  EXPECT_EQ(config_of("run")["toy_width"], 5);
}

TEST_F(ToyModel, StartsFromWeightsOfItsOwnFormAlone) {
  ASSERT_EQ(train("run", {"--toy-width", "5", "--toy-form", "doubled"}).code, 0);
  const std::string file = run_of("run") + "/model.safetensors";
  EXPECT_THAT(train("b", {"--from", file}).err,
              HasSubstr("the file's model is that of --toy-width 5 --toy-form doubled"));
  EXPECT_THAT(train("c", {"--from", file, "--toy-width", "5"}).err,
              HasSubstr("add --toy-form doubled"));
  EXPECT_EQ(train("d", {"--from", file, "--toy-width", "5", "--toy-form", "doubled"}).code, 0);
}

TEST_F(ToyModel, AloneHasThem) {
  const Outcome outcome = run({"train", "mlp", "--toy-width", "5", "--dry-run"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("it is about the model toy"));
  const Outcome pool = train("run", {"--pool", "mean"});
  EXPECT_EQ(pool.code, 2);
  EXPECT_THAT(pool.err, HasSubstr("it is about the model lstm"));
}

}  // namespace

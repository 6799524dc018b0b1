#include "lab/settings/resolved.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/autocast/parts.h"
#include "demi/core/error.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/recipe.h"

namespace demi::settings {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Backends, AreLibTorchsByDefault) {
  const Backends backends = backends_of(Config());
  const Backends expected{.allow_fp16_reduced_precision_reduction = true,
                          .allow_bf16_reduced_precision_reduction = true,
                          .cudnn_enabled = true,
                          .cudnn_benchmark = false,
                          .cudnn_deterministic = false,
                          .deterministic_algorithms = false};
  EXPECT_EQ(backends, expected);
}

TEST(Backends, AreWhatTheConfigSays) {
  Config config;
  const std::pair<const char*, const char*> settings[] = {
      {"cuda-matmul-allow-tf32", "on"},
      {"cudnn-allow-tf32", "off"},
      {"cudnn-enabled", "false"},
      {"cudnn-benchmark", "true"},
      {"threads", "3"},
      {"allow-fp16-reduced-precision-reduction", "false"}};
  for (const auto& [name, text] : settings) set(config, name, text, name);
  Backends expected{.cuda_matmul_allow_tf32 = true,
                    .cudnn_allow_tf32 = false,
                    .allow_fp16_reduced_precision_reduction = false,
                    .allow_bf16_reduced_precision_reduction = true,
                    .cudnn_enabled = false,
                    .cudnn_benchmark = true,
                    .cudnn_deterministic = false,
                    .deterministic_algorithms = false,
                    .threads = 3};
  EXPECT_EQ(backends_of(config), expected);
  EXPECT_EQ(trainer_options(resolve(config), 1).backends, expected);
  set(config, "deterministic", "true", "");
  expected.cudnn_benchmark = false;  // another algorithm in another run has other bits
  expected.cudnn_deterministic = expected.deterministic_algorithms = true;
  EXPECT_EQ(backends_of(config), expected);
}

TEST(Backends, RefuseOtherWords) {
  Config config;
  EXPECT_THROW(set(config, "cudnn-allow-tf32", "yes", "--cudnn-allow-tf32"), UsageError);
  EXPECT_THROW(set(config, "threads", "-1", "--threads"), UsageError);
}

// cuDNN's trials pay where shapes repeat. Texts have other lengths in every batch, and perceptron
// and transformer have no convolutions.
TEST(Backends, RecipesOfPicturesLetCudnnTimeItsAlgorithms) {
  for (const Recipe& recipe : recipes()) {
    const std::string& model = recipe.config.model;
    const bool has_pictures = model != "mlp" && model != "lstm" && model != "gpt";
    EXPECT_EQ(recipe.config.cudnn_benchmark, has_pictures) << recipe.name;
  }
}

// Loshchilov and Hutter 2017, equation 5, stepped per epoch: 0.1 / 2 (1 + cos(pi epoch / 200)).
TEST(Schedule, CosineOfThePublishedRecipeMovesPerEpoch) {
  const Config& config = find_recipe("cifar10-resnet18").config;
  const auto rule = make_schedule(resolve(config), 391);
  for (const int64_t epoch : {0, 1, 4, 100, 199}) {
    const double expected =
        0.05 * (1 + std::cos(std::acos(-1.0) * static_cast<double>(epoch) / 200));
    EXPECT_NEAR(rule(epoch * 391, 0.1), expected, 1e-12) << epoch;
    EXPECT_EQ(rule(epoch * 391, 0.1), rule(epoch * 391 + 390, 0.1)) << "the same all epoch long";
  }
}

// As in Hugging Face's get_linear_schedule_with_warmup and torchvision's reference training: the
// decay begins at the full rate where the warm-up ends.
TEST(Schedule, WarmUpRisesInStepsToTheFullRate) {
  Config config;
  config.epochs = 4;
  config.warmup_epochs = 1;
  const auto rule = make_schedule(resolve(config), 10);
  EXPECT_DOUBLE_EQ(rule(0, 1.0), 0.1);
  EXPECT_DOUBLE_EQ(rule(4, 1.0), 0.5);
  EXPECT_DOUBLE_EQ(rule(9, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(rule(10, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(rule(39, 1.0), 1.0);

  config.schedule = "linear";
  const auto linear = make_schedule(resolve(config), 10);
  EXPECT_DOUBLE_EQ(linear(9, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(linear(10, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(linear(25, 1.0), 0.5) << "half of the 30 steps that are left";
  EXPECT_NEAR(linear(39, 1.0), 1.0 / 30, 1e-12);

  config.schedule = "cosine";
  const auto cosine = make_schedule(resolve(config), 10);
  EXPECT_DOUBLE_EQ(cosine(9, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(cosine(19, 1.0), 1.0);
  EXPECT_NEAR(cosine(20, 1.0), 0.75, 1e-12) << "(1 + cos(pi / 3)) / 2, the second of 3 epochs";
  EXPECT_NEAR(cosine(39, 1.0), 0.25, 1e-12);
}

// nanoGPT's rule, as its train.py states it: up in warmup_iters, along half a cosine to min_lr at
// lr_decay_iters, and min_lr from there on.
double rate_of_nanogpt(int64_t it, double lr, double least, int64_t warmup, int64_t end) {
  if (it < warmup) return lr * static_cast<double>(it + 1) / static_cast<double>(warmup + 1);
  if (it > end) return least;
  const double way = static_cast<double>(it - warmup) / static_cast<double>(end - warmup);
  return least + 0.5 * (1 + std::cos(M_PI * way)) * (lr - least);
}

Config by_step() {
  Config config;
  config.epochs = 10;
  config.lr = 1e-3;
  config.min_lr = 1e-4;
  config.schedule = "cosine-by-step";
  config.schedule_steps = 2000;
  config.warmup_steps = 100;
  return config;
}

TEST(Schedule, CosineByStepIsNanoGPTs) {
  const auto rule = make_schedule(resolve(by_step()), 250);
  for (int64_t step = 0; step < 2500; ++step)
    ASSERT_NEAR(rule(step, 1e-3), rate_of_nanogpt(step, 1e-3, 1e-4, 100, 2000), 1e-15) << step;
}

TEST(Schedule, EndsAtTheLeastRate) {
  Config config = by_step();
  config.warmup_steps = config.schedule_steps = 0;
  config.epochs = 2;
  for (const char* name : {"linear", "cosine-by-step"}) {
    config.schedule = name;
    const auto rule = make_schedule(resolve(config), 10);
    EXPECT_DOUBLE_EQ(rule(0, 1e-3), 1e-3) << name;
    EXPECT_NEAR(rule(10, 1e-3), 5.5e-4, 1e-15) << name;
    EXPECT_NEAR(rule(20, 1e-3), 1e-4, 1e-15) << name;
    EXPECT_NEAR(rule(30, 1e-3), 1e-4, 1e-15) << name;
  }
  config.schedule = "cosine";
  EXPECT_NEAR(make_schedule(resolve(config), 10)(19, 1e-3), 5.5e-4, 1e-15) << "the second epoch's";
}

TEST(Schedule, OfStepsThatEndBeforeTrainingDoIsRefused) {
  Config config = by_step();
  config.min_lr = 0;
  EXPECT_THROW(make_schedule(resolve(config), 250), UsageError) << "2,500 steps";
  config.steps = 2000;
  EXPECT_NO_THROW(make_schedule(resolve(config), 250));
  config.steps = 0;
  config.epochs = 8;
  EXPECT_NO_THROW(make_schedule(resolve(config), 250));
}

TEST(Schedule, CountsStepsOfAccumulatedBatches) {
  Config config;
  config.epochs = 2;
  config.schedule = "linear";
  config.accumulate = 4;
  const auto options = trainer_options(resolve(config), /*batches_per_epoch=*/10);
  EXPECT_DOUBLE_EQ(options.schedule(3, 1.0), 0.5) << "3 steps an epoch, 6 in all";
  EXPECT_DOUBLE_EQ(options.schedule(6, 1.0), 0);
}

std::string refusal(const Config& config) {
  try {
    const torch::nn::Linear layer(2, 2);
    make_optimizer(resolve(config), {.module = layer.ptr(), .forward = {}});
    make_schedule(resolve(config), 10);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

// A public struct holds any word: what is not in the list must not train with something else.
TEST(Plan, AnUnknownWordIsRefusedAndNeverTrainsWithAnother) {
  Config config;
  config.optimizer = "Adam";
  EXPECT_THAT(refusal(config), HasSubstr("did you mean adam?"));
  EXPECT_THROW(check(config), UsageError);
  config = {};
  config.schedule = "Cosine";
  EXPECT_THAT(refusal(config), HasSubstr("did you mean cosine?"));
  EXPECT_THROW(check(config), UsageError);
  config = {};
  config.normalize = "Half";
  EXPECT_THROW(check(config), UsageError) << "which meant no normalization";
}

TEST(Plan, EveryOptimizerOfTheListIsMadeWithTheConfigsNumbers) {
  const torch::nn::Linear layer(2, 2);
  for (const OptimizerKind& kind : optimizer_kinds()) {
    if (kind.takes_matrices) continue;
    SCOPED_TRACE(kind.name);
    Config config;
    config.optimizer = kind.name;
    config.lr = 0.125;
    const auto one = make_optimizer(resolve(config), {.module = layer.ptr(), .forward = {}});
    ASSERT_EQ(one->param_groups().size(), 1u);
    EXPECT_EQ(one->param_groups()[0].params().size(), 2u);
    EXPECT_EQ(one->param_groups()[0].options().get_lr(), 0.125);
    config.decay_by_rule = true;
    const auto two = make_optimizer(resolve(config), {.module = layer.ptr(), .forward = {}});
    ASSERT_EQ(two->param_groups().size(), 2u);
    EXPECT_EQ(two->param_groups()[1].params().size(), 1u) << "the bias";
  }
}

TEST(Plan, MuonHasHiddenMatricesAndAdamWTheOthers) {
  torch::nn::Linear body(2, 2), head(2, 3);
  const torch::nn::Sequential model(body, head);
  Config config;
  config.optimizer = "muon";
  config.lr = 0.125;
  config.muon_lr = 0.25;
  config.weight_decay = 0.5;
  config.betas = "0.8,0.95";
  config.optimizer_options = "ns_steps=6,adjust_lr=1";
  const auto groups_of = [&] {
    auto made = make_optimizer(resolve(config), {.module = model.ptr(), .forward = {}});
    EXPECT_EQ(made->param_groups()[0].options().get_lr(), 0.125) << "the run's learning rate";
    return dynamic_cast<optim::Optimizer&>(*made).group_numbers();
  };
  const auto groups = groups_of();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].at("betas.1"), 0.95);
  EXPECT_EQ(groups[1].at("lr"), 0.25);
  EXPECT_EQ(groups[1].at("momentum"), 0.95);
  EXPECT_EQ(groups[1].at("weight_decay"), 0.5);
  EXPECT_EQ(groups[1].at("ns_steps"), 6);
  EXPECT_EQ(groups[1].at("adjust_lr"), 1);
  config.momentum = 0.9;
  config.decay_by_rule = true;
  const auto by_rule = groups_of();
  ASSERT_EQ(by_rule.size(), 3U);
  EXPECT_EQ(by_rule[1].at("weight_decay"), 0);
  EXPECT_EQ(by_rule[2].at("momentum"), 0.9);
}

// eps of torch.optim.AdamW (1e-8) is added to a root of squares, that of torch.optim.Muon (1e-7)
// bounds a matrix's norm: who names one does not mean the other. Muon's nesterov is on by default.
TEST(Plan, OptionsOfMuonAndOfItsAdamWAreToldApart) {
  const auto groups_of = [](const std::string& options) {
    const torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 3));
    Config config;
    config.optimizer = "muon";
    config.decay_by_rule = true;
    config.optimizer_options = options;
    auto made = make_optimizer(resolve(config), {.module = model.ptr(), .forward = {}});
    auto groups = dynamic_cast<optim::Optimizer&>(*made).group_numbers();
    EXPECT_EQ(groups.size(), 3U);
    EXPECT_EQ(groups[0].at("eps"), groups[1].at("eps"));
    return groups;
  };
  const auto usual = groups_of("");
  EXPECT_EQ(usual[0].at("eps"), 1e-8);
  EXPECT_EQ(usual[2].at("eps"), 1e-7);
  EXPECT_EQ(usual[2].at("nesterov"), 1);
  const auto adamws = groups_of("eps=1e-4");
  EXPECT_EQ(adamws[0].at("eps"), 1e-4);
  EXPECT_EQ(adamws[2].at("eps"), 1e-7);
  const auto muons = groups_of("muon_eps=1e-5,nesterov=false");
  EXPECT_EQ(muons[0].at("eps"), 1e-8);
  EXPECT_EQ(muons[2].at("eps"), 1e-5);
  EXPECT_EQ(muons[2].at("nesterov"), 0);
}

TEST(Plan, SwitchesTellAutocastAndScalerApart) {
  Config config;
  config.precision = "fp16";
  config.loss_scale = "128";
  const auto both = trainer_options(resolve(config), 1);
  EXPECT_TRUE(both.autocast);
  EXPECT_EQ(both.loss_scale.kind, LossScale::Kind::fixed);
  config.scaler = false;
  EXPECT_EQ(trainer_options(resolve(config), 1).loss_scale.kind, LossScale::Kind::off);
  config.autocast = false;
  EXPECT_FALSE(trainer_options(resolve(config), 1).autocast);
}

TEST(Plan, ARunChangesTheSettingsThatItsVariantsName) {
  Config config;
  config.fp32_part = "a";
  config.op_policy = "of-all";
  const Config plain = config_of(config, parse_run("bf16:scale=0.1"));
  EXPECT_EQ(plain.precision, "bf16");
  EXPECT_EQ(plain.loss_scale, "0.1");
  EXPECT_TRUE(plain.autocast && plain.skip);
  EXPECT_EQ(plain.fp32_part, "a");
  EXPECT_EQ(plain.op_policy, "of-all");
  const Config own =
      config_of(config, parse_run("fp16:no-autocast:no-skip:fp32-part=b:op-policy=of-one"));
  EXPECT_FALSE(own.autocast || own.skip);
  EXPECT_EQ(own.fp32_part, "a,b");
  EXPECT_EQ(own.op_policy, "of-one");
  config.cuda_graph = "auto";
  EXPECT_EQ(config_of(config, parse_run("fp32")).cuda_graph, "auto");
  EXPECT_EQ(config_of(config, parse_run("fp32:cuda-graph=on")).cuda_graph, "on");
  const Config without = config_of({}, parse_run("fp16:fp32-part=b"));
  EXPECT_EQ(without.fp32_part, "b");
  config.skip = config.autocast = false;
  EXPECT_FALSE(config_of(config, parse_run("bf16")).skip);
  EXPECT_FALSE(config_of(config, parse_run("bf16")).autocast);
}

TEST(Plan, MomentsReachTheOptimizerThatKeepsSome) {
  Config config;
  set(config, "optimizer", "sgd", "");
  set(config, "moments", "int8", "");
  EXPECT_THROW(resolve(config), UsageError) << "sgd without momentum";
  Config adagrad = config;
  set(adagrad, "optimizer", "adagrad", "");
  EXPECT_THROW(resolve(adagrad), UsageError) << "adagrad";
  set(config, "momentum", "0.9", "");
  const auto codes = [&](const char* seed) {
    set(config, "seed", seed, "");
    torch::nn::Linear layer(64, 64);
    const auto made = make_optimizer(resolve(config), {.module = layer.ptr(), .forward = {}});
    layer->weight.mutable_grad() = at::arange(4096).view({64, 64}).to(at::kFloat);
    made->step();
    return static_cast<optim::Optimizer&>(*made).state_tensors().at("0.momentum_buffer");
  };
  EXPECT_EQ(codes("1").scalar_type(), at::kChar);
  EXPECT_TRUE(at::equal(codes("1"), codes("1")));
  EXPECT_FALSE(at::equal(codes("1"), codes("2"))) << "the run's seed rounds";
}

TEST(Plan, TheGraphModeReachesTheTrainer) {
  const auto mode = [](const char* word, c10::Device device) {
    Config config;
    set(config, "cuda-graph", word, "--cuda-graph");
    return trainer_options(resolve(config, parse_run("bf16"), device), 1).graph;
  };
  const c10::Device gpu(c10::kCUDA, 0);
  EXPECT_EQ(mode("off", gpu), loop::GraphMode::off);
  EXPECT_EQ(mode("auto", gpu), loop::GraphMode::automatic);
  EXPECT_EQ(mode("auto", c10::kCPU), loop::GraphMode::automatic);
  EXPECT_EQ(mode("on", gpu), loop::GraphMode::on);
  EXPECT_THROW(mode("on", c10::kCPU), UsageError);
}

TEST(Plan, TheWeightModeReachesTheOptimizer) {
  // What is kept beside a weight of the run after a step: "" for the weight alone.
  const auto kept = [](const Resolved& run) {
    torch::nn::Linear layer(1, 1);
    if (!run.spec.precision.is_mixed()) layer->to(run.spec.precision.weights);
    const auto made = make_optimizer(run, {.module = layer.ptr(), .forward = {}});
    layer->weight.mutable_grad() = at::ones_like(layer->weight);
    made->step();
    for (const auto& [name, tensor] : static_cast<optim::Optimizer&>(*made).state_tensors())
      if (name == "0.master" || name == "0.remainder")
        return c10::str(layer->weight.scalar_type(), " ", tensor.scalar_type());
    return c10::str(layer->weight.scalar_type());
  };
  for (const std::string precision : {"bf16-true", "bf16"}) {
    const auto after = [&](const std::string& run) { return kept(resolve({}, parse_run(run))); };
    EXPECT_EQ(after(precision), precision == "bf16" ? "Float" : "BFloat16 Float");
    EXPECT_EQ(after(precision + ":split"), "BFloat16 Short");
    EXPECT_EQ(after(precision + ":split24"), "BFloat16 Char");
    EXPECT_EQ(after(precision + ":stochastic"), "BFloat16");
  }
  Config config;
  set(config, "weight-mode", "split", "");
  EXPECT_EQ(kept(resolve(config, parse_run("bf16"))), "BFloat16 Short");
  EXPECT_EQ(typed_options("bf16:split24"), "--precision bf16 --weight-mode split24");
  for (const char* narrow : {"fp16", "fp16-true"})
    EXPECT_EQ(kept(resolve(config, parse_run(narrow))), "Half UInt16");
  for (const char* other : {"fp32", "tf32", "fp64"})
    EXPECT_THROW(resolve(config, parse_run(other)), UsageError) << other;
  for (const char* other : {"fp32", "fp16", "fp16-true", "tf32", "fp64"})
    for (const char* mode : {":stochastic", ":split24"})
      EXPECT_THROW(resolve({}, parse_run(std::string(other) + mode)), UsageError) << other;
  EXPECT_THROW(resolve({}, parse_run("fp16:no-autocast:split")), UsageError);
  EXPECT_THROW(resolve({}, parse_run("bf16:no-autocast:split")), UsageError);
}

TEST(Plan, WithoutSkippingTheTrainerTakesEveryStep) {
  Config config;
  EXPECT_TRUE(trainer_options(resolve(config, parse_run("fp16")), 1).scaler.skip_nonfinite);
  EXPECT_FALSE(
      trainer_options(resolve(config, parse_run("fp16:no-skip")), 1).scaler.skip_nonfinite);
  torch::nn::Linear layer(1, 1);
  for (const bool skip : {true, false}) {
    config.skip = skip;
    const auto optimizer = make_optimizer(resolve(config), {.module = layer.ptr(), .forward = {}});
    for (const auto& parameter : layer->parameters())
      parameter.mutable_grad() =
          torch::full_like(parameter, std::numeric_limits<float>::quiet_NaN());
    optimizer->step();
    EXPECT_EQ(layer->weight.isnan().item<bool>(), !skip);
  }
}

TEST(Plan, TheLossHasItsWeight) {
  Config config;
  config.loss = "mse";
  config.loss_weight = 0.25;
  const at::Tensor output = torch::tensor({1.F, 4.F}), target = torch::tensor({3.F, 2.F});
  EXPECT_EQ(resolve(config).loss(output, target).item<float>(), 1);  // 4 / 4
  config.loss = "cross-entropy";
  const at::Tensor logits = torch::zeros({2, 8}), classes = torch::tensor({1, 5});
  EXPECT_NEAR(resolve(config).loss(logits, classes).item<float>(), std::log(8.0) / 4, 1e-6);
  EXPECT_TRUE(resolve(config).loss.has_accuracy());
}

class PolicyFile : public ::testing::Test {
 protected:
  PolicyFile() : path_(::testing::TempDir() + "/resolved.policy") {}
  ~PolicyFile() override { std::filesystem::remove(path_); }
  std::string path_;
};

std::string refusal_of(const Config& config, const train::Network& network) {
  try {
    apply_policy(resolve(config), network);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(PolicyFile, NamesOpsAndPartsOfTheModel) {
  OpPolicy().set("mm", OpCategory::fp32).keep_part_in_fp32("1").to_file(path_);
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                              torch::nn::Linear(4, 4));
  const train::Network network = train::network(model);
  Config config;
  EXPECT_FALSE(resolve(config).op_policy);
  config.op_policy = path_;
  config.fp32_part = "2";
  const auto options = trainer_options(resolve(config, parse_run("bf16")), 1);
  ASSERT_TRUE(options.op_policy);
  EXPECT_EQ(options.op_policy->changes().front().op, "mm");
  apply_policy(resolve(config), network);
  const Autocast region(torch::kCPU);
  const at::Tensor x = torch::ones({2, 4});
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(model[i]->as<torch::nn::Linear>()->forward(x).scalar_type(),
              i == 0 ? torch::kBFloat16 : torch::kFloat);
  unapply(*model);
}

// A run that resumes compares it with what the checkpoint says, which is a text.
TEST_F(PolicyFile, OfARunIsKeptAsItsTextAsThatOfTheSettingIs) {
  OpPolicy().set("mm", OpCategory::fp32).to_file(path_);
  Config of_setting;
  set(of_setting, "op-policy", path_, "--op-policy");
  const Config of_run = config_of(Config(), parse_run("bf16:op-policy=" + path_));
  EXPECT_THAT(of_run.op_policy, HasSubstr("mm fp32"));
  EXPECT_EQ(of_run.op_policy, of_setting.op_policy);
}

TEST_F(PolicyFile, OfPartsThatTheModelDoesNotHaveIsAnsweredWithTheNearest) {
  torch::nn::Sequential model;
  model->push_back("encoder", torch::nn::Linear(4, 4));
  model->push_back("head", torch::nn::Linear(4, 4));
  const train::Network network = train::network(model);
  Config config;
  config.fp32_part = "encoder,haed";
  EXPECT_THAT(refusal_of(config, network),
              AllOf(HasSubstr("[--fp32-part]"), HasSubstr("did you mean head?")));
  config.fp32_part = "encoder";
  OpPolicy().keep_part_in_fp32("encodr").to_file(path_);
  config.op_policy = path_;
  EXPECT_THAT(refusal_of(config, network),
              AllOf(HasSubstr("[--op-policy]"), HasSubstr("did you mean encoder?")));
  EXPECT_EQ(count_marked_parameters(), 0) << "nothing was changed";
  config.op_policy = path_ + ".none";
  EXPECT_THROW(apply_policy(resolve(config), network), DataError);
}

TEST(Resolve, LooksUpTheWordsOfAConfig) {
  Config config = find_recipe("cifar10-cnn").config;
  config.precision = "mixed";
  config.fp32_part = "layers.0";
  const Resolved run = resolve(config);
  EXPECT_EQ(run.model->name, config.model);
  EXPECT_EQ(run.data->name, config.data);
  EXPECT_EQ(run.optimizer->name, config.optimizer);
  EXPECT_EQ(run.schedule->name, config.schedule);
  EXPECT_EQ(run.spec.label, "bf16") << "a CPU's mixed precision";
  EXPECT_EQ(run.config.precision, "bf16");
  EXPECT_EQ(run.fp32_parts, std::vector<std::string>{"layers.0"});
  const Resolved other = resolve(config, parse_run("fp16:fp32-part=layers.2:no-skip"));
  EXPECT_EQ(other.fp32_parts, (std::vector<std::string>{"layers.0", "layers.2"}));
  EXPECT_FALSE(other.config.skip);
  EXPECT_EQ(resolve(Config()).model, nullptr) << "a workload of one's own makes its network";
}

TEST(Resolve, RefusesWordsThatAreNone) {
  for (std::string Config::*word :
       {&Config::model, &Config::data, &Config::optimizer, &Config::schedule, &Config::loss}) {
    Config config = find_recipe("cifar10-cnn").config;
    config.*word = "none such";
    EXPECT_THROW(resolve(config), UsageError);
  }
  Config config;
  config.op_policy = "/none/such";
  EXPECT_THROW(resolve(config), DataError);
}

TEST(Resolved, ARecipeIsAppliedAndItsWeightsAreNamed) {
  Config config = find_recipe("mlp").config;
  config.precision = "mxfp8";
  torch::nn::Sequential module(torch::nn::Linear(32, 64), torch::nn::Linear(64, 40),
                               torch::nn::Linear(40, 10));
  const train::Network network{.module = module.ptr(), .forward = {}};
  EXPECT_EQ(layers_in_words(*module), "");
  apply_policy(resolve(config), network);
  EXPECT_EQ(
      layers_in_words(*module),
      "2 weights in mxfp8 (E4M3, a power of two as scale for 32 neighbours), 1 of a size that no "
      "block divides (filled up with zeros), not 2.weight");
  {
    const Autocast region(torch::kCPU);
    module[0]->as<torch::nn::Linear>()->forward(torch::ones({2, 32}));
  }
  EXPECT_EQ(layers_in_words(*module),
            "1 weight in mxfp8 (E4M3, a power of two as scale for 32 neighbours), not 1.weight, "
            "2.weight")
      << "what no layer multiplied by";
  unapply(*module);
}

}  // namespace
}  // namespace demi::settings

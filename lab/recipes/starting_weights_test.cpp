// Runs that start from saved weights. Truth is what the checkpoint holds, and how a program of its
// own loads the same file (examples/fine_tuning_resnet).
#include "lab/recipes/starting_weights.h"

#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/training_state.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "demi/optim/export_fp32.h"
#include "demi/optim/optimizer.h"
#include "lab/models/registry.h"
#include "lab/models/resnet.h"
#include "lab/models/vgg.h"
#include "lab/recipes/find_start.h"
#include "lab/recipes/run.h"
#include "lab/recipes/same_run_testing.h"
#include "lab/recipes/small_mlp_testing.h"
#include "lab/settings/config_source.h"
#include "lab/workload/model_file.h"
#include "lab/workload/tensor_names.h"
#include "lab/workload/weights_file.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::NamedTensors;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class StartingWeightsTest : public ::testing::Test {
 protected:
  StartingWeightsTest()
      : folder_(fs::temp_directory_path() / ("demi-start-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~StartingWeightsTest() override { fs::remove_all(folder_); }

  static settings::Config config(const std::string& precision = "fp32") {
    settings::Config c = small_mlp();
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{
             {"optimizer", "adamw"}, {"lr", "0.01"}, {"ema", "0.5"}, {"device", "cpu"}})
      settings::set(c, name, value, name);
    c.precision = precision;
    return c;
  }

  // Trains, and returns the run's checkpoint.
  fs::path trained(const settings::Config& c, const std::string& name = "run") {
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    run(settings::resolve(c), workload::load_workload(c, c10::kCPU),
        {.folder = folder, .checkpoints = folder / "checkpoints"});
    return checkpoint::find(folder);
  }

  struct Begun {
    train::Network network;
    std::shared_ptr<torch::optim::Optimizer> optimizer;
    StartingWeights start;
    NamedTensors initial;  // what the network held before

    NamedTensors weights() const { return saved().model; }
    Checkpoint saved() const {
      return checkpoint::capture(
          {.models = {network.module.get()}, .optimizers = {optimizer.get()}, .random = false});
    }
  };

  // The start of a run of that config.
  static Begun begin(const settings::Config& c, const fs::path& path) {
    return begin(c, path, workload::load_workload(c, c10::kCPU));
  }
  static Begun begin(const settings::Config& c, const fs::path& path,
                     const workload::Workload& workload) {
    const settings::Resolved run = settings::resolve(c);
    Begun begun{.network = workload.make_network(static_cast<uint64_t>(c.seed)), .start = {}};
    begun.optimizer = settings::make_optimizer(run, begun.network);
    if (!run.spec.precision.is_mixed() && run.spec.precision.weights != at::kFloat)
      to_precision(*begun.network.module, run.spec.precision.weights, false);
    begun.initial = copy(begun.weights());
    begun.start = read_start(run, workload, *begun.network.module, path);
    put(begun.start, *begun.network.module, *begun.optimizer);
    return begun;
  }

  static std::string refusal(const settings::Config& c, const fs::path& path) {
    return refusal(c, path, workload::load_workload(c, c10::kCPU));
  }
  static std::string refusal(const settings::Config& c, const fs::path& path,
                             const workload::Workload& workload) {
    try {
      const settings::Resolved run = settings::resolve(c);
      check_start({&run, 1}, workload, path);
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  }

  static NamedTensors copy(NamedTensors tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor.clone();
    return tensors;
  }

  static settings::Config with(settings::Config c, const std::string& name,
                               const std::string& value) {
    settings::set(c, name, value, name);
    return c;
  }

  fs::path write(const NamedTensors& tensors, const std::string& name = "file.safetensors") {
    checkpoint::save_safetensors(folder_ / name, tensors);
    return folder_ / name;
  }

  fs::path folder_;
};

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(b.contains(name) && torch::equal(tensor, b.at(name))) << name;
}

TEST_F(StartingWeightsTest, AreThoseOfTheCheckpointAndNotItsAverage) {
  const fs::path path = trained(config());
  const Checkpoint saved = checkpoint::load(path);
  settings::Config c = with(config(), "from", path.string());
  const Begun begun = begin(c, path);
  expect_same(begun.weights(), saved.model);
  EXPECT_THAT(begun.start.said.front(), AllOf(HasSubstr("step-00000008: the weights of step 8"),
                                              HasSubstr("the optimizer's state is new")));
  EXPECT_THAT(begun.start.saved.state, IsEmpty());
  const Begun average = begin(with(c, "from-average", "true"), path);
  for (const auto& [name, tensor] : average.weights()) {
    EXPECT_TRUE(torch::equal(tensor, saved.state.at("average/" + name))) << name;
    EXPECT_FALSE(torch::equal(tensor, saved.model.at(name))) << name;
  }
}

TEST_F(StartingWeightsTest, AreWhatTheRunBeginsWith) {
  const fs::path path = trained(config());
  settings::Config c = with(with(with(config(), "from", path.string()), "lr", "0"), "ema", "0");
  c.seed = 7;
  expect_same(checkpoint::load(trained(c, "other")).model, checkpoint::load(path).model);
}

// A run that was killed before its first checkpoint begins from them again; later it needs them no
// more.
TEST_F(StartingWeightsTest, AreReadAgainOnlyWithoutACheckpoint) {
  const fs::path path = trained(config()), folder = folder_ / "other";
  settings::Config c = with(with(config(), "from", (folder_ / "run").string()), "lr", "0");
  fs::create_directories(folder);
  const JobOptions options{.folder = folder, .checkpoints = folder / "checkpoints", .resume = true};
  const workload::Workload workload = workload::load_workload(c, c10::kCPU);
  run(settings::resolve(c), workload, options);
  const NamedTensors saved = checkpoint::load(path).model;
  expect_same(checkpoint::load(folder).model, saved);
  fs::remove_all(folder_ / "run");
  run(settings::resolve(c), workload, options);
  expect_same(checkpoint::load(folder).model, saved);
}

TEST_F(StartingWeightsTest, GetTheirMomentsByNameAndTheRunsOwnOptions) {
  const fs::path path = trained(config());
  const Checkpoint saved = checkpoint::load(path);
  settings::Config c =
      with(with(with(config(), "from", path.string()), "from-state", "true"), "lr", "0.5");
  c.decay_by_rule = true;  // weights, then biases
  const Checkpoint now = begin(c, path).saved();
  const std::vector<std::string> before = saved.parameters.at("optimizer").front();
  std::size_t number = 0;
  for (const auto& group : now.parameters.at("optimizer"))
    for (const std::string& name : group) {
      const auto was = std::ranges::find(before, name) - before.begin();
      for (const char* part : {".exp_avg", ".exp_avg_sq", ".step"})
        EXPECT_TRUE(torch::equal(now.state.at("optimizer/" + std::to_string(number) + part),
                                 saved.state.at("optimizer/" + std::to_string(was) + part)))
            << name << part;
      ++number;
    }
  EXPECT_EQ(number, before.size());
  EXPECT_EQ(now.numbers.at("optimizer/group.0").at("lr"), 0.5);
  EXPECT_EQ(now.state.at("optimizer/taken").item<int64_t>(), 0) << "its schedule begins";
}

TEST_F(StartingWeightsTest, OfTheSameGroupsKeepTheRunsOptionsToo) {
  const fs::path path = trained(config());
  settings::Config c =
      with(with(with(config(), "from", path.string()), "from-state", "true"), "lr", "0.5");
  const Checkpoint now = begin(c, path).saved();
  EXPECT_EQ(now.numbers.at("optimizer/group.0").at("lr"), 0.5);
  EXPECT_TRUE(now.state.contains("optimizer/0.exp_avg"));
}

// A run on a GPU saves the rates of all its steps, and one with --skip-norm-above the norms of the
// last: by these a run of another loss would skip every step.
TEST_F(StartingWeightsTest, HaveNoRatesAndNoNormsOfTheRunBefore) {
  const fs::path path = trained(config());
  Checkpoint saved = checkpoint::load(path);
  saved.state["optimizer/scheduled_rates.0"] = torch::ones({8}, at::kDouble);
  saved.state["optimizer/accepted_norms"] = torch::linspace(1, 2, 128);
  const fs::path captured = checkpoint::save(folder_ / "captured", 8, saved);
  const settings::Config c =
      with(with(with(config(), "from", captured.string()), "from-state", "true"), "skip-norm-above",
           "3sd");
  const Checkpoint now = begin(c, captured).saved();
  EXPECT_FALSE(now.state.contains("optimizer/scheduled_rates.0"));
  EXPECT_FALSE(now.state.contains("optimizer/accepted_norms"));
  EXPECT_TRUE(now.state.contains("optimizer/0.exp_avg"));
}

// The file has what 16-bit weights are trained as: the next step goes on from it.
TEST_F(StartingWeightsTest, OfA16BitRunKeepWhatTheyAreTrainedAs) {
  for (const char* mode : {"master", "split", "split24"}) {
    SCOPED_TRACE(mode);
    const settings::Config c = with(with(config("bf16-true"), "ema", "0"), "weight-mode", mode);
    const fs::path path = trained(c, std::string("true-") + mode);
    const NamedTensors expected = workload::read_weights(path);
    Begun begun = begin(with(c, "from", path.string()), path);
    torch::optim::Optimizer& optimizer = *begun.optimizer;
    for (auto& group : optimizer.param_groups()) group.options().set_lr(0);
    const auto parameters = begun.network.module->named_parameters();
    for (const auto& item : parameters)
      item.value().mutable_grad() = torch::zeros_like(item.value());
    optimizer.step();
    for (const auto& item : parameters)
      EXPECT_TRUE(
          torch::equal(optim::fp32_weight(optimizer, item.value()), expected.at(item.key())))
          << item.key();
  }
}

TEST_F(StartingWeightsTest, OfACheckpointWithoutNamesHaveTheStateByNumberButForNoNewHead) {
  const fs::path path = trained(config());
  Checkpoint saved = checkpoint::load(path);
  const NamedTensors state = saved.state;
  saved.parameters.clear();
  const fs::path older = checkpoint::save(folder_ / "older", 8, saved);
  const settings::Config c = with(with(config(), "from", older.string()), "from-state", "true");
  EXPECT_TRUE(torch::equal(begin(c, older).saved().state.at("optimizer/3.exp_avg"),
                           state.at("optimizer/3.exp_avg")));
  EXPECT_THAT(refusal(with(c, "out", "4"), older),
              AllOf(HasSubstr("by number, without names, and the head is new"),
                    HasSubstr("leave out --from-state")));
  std::erase_if(saved.state, [](const auto& one) { return one.first.starts_with("optimizer/"); });
  const fs::path average = checkpoint::save(folder_ / "average", 8, saved);
  EXPECT_THAT(refusal(c, average), HasSubstr("there is no optimizer's state in"));
}

TEST_F(StartingWeightsTest, GetANewHeadForOtherOutputsWithoutMoments) {
  const fs::path path = trained(config());
  const NamedTensors saved = checkpoint::load(path).model;
  settings::Config c =
      with(with(with(config(), "from", path.string()), "from-state", "true"), "out", "4");
  const Begun begun = begin(c, path);
  const Checkpoint now = begun.saved();
  for (const auto& [name, tensor] : now.model) {
    const bool is_head = name.starts_with("layers.4.");
    EXPECT_TRUE(torch::equal(tensor, (is_head ? begun.initial : saved).at(name))) << name;
  }
  const auto& names = now.parameters.at("optimizer").front();
  for (std::size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(now.state.contains("optimizer/" + std::to_string(i) + ".exp_avg"),
              !names[i].starts_with("layers.4."))
        << names[i];
  EXPECT_THAT(begun.start.said.front(),
              AllOf(HasSubstr("the head layers.4 is new: (4, 8), in the file (8, 8)"),
                    HasSubstr("moments too, but for the head's")));
  trained(c, "other");  // such a state trains
  NamedTensors weights = saved;
  weights.erase("layers.4.bias");
  EXPECT_THAT(refusal(with(config(), "out", "4"), write(weights)),
              HasSubstr("layers.4.bias is missing"))
      << "half a head is none";
}

TEST_F(StartingWeightsTest, OfAnotherArchitectureAreRefusedByThreeNames) {
  const fs::path path = trained(config());
  EXPECT_THAT(refusal(with(with(config(), "in", "6"), "from", path.string()), path),
              AllOf(HasSubstr("seen: layers.0.weight (8, 8) for (6, 6); layers.0.bias (8) for (6); "
                              "layers.2.weight (8, 8) for (6, 6); and 1 more"),
                    HasSubstr("--in 8")));
  EXPECT_THAT(refusal(with(config(), "depth", "4"), path),
              AllOf(HasSubstr("layers.6.weight is missing"), HasSubstr("--depth 3")));
  EXPECT_THAT(refusal(with(config(), "depth", "2"), path),
              HasSubstr("layers.4.bias is of no part of the model"));
}

TEST_F(StartingWeightsTest, AreTheMastersOfASixteenBitRun) {
  const fs::path path = trained(config("bf16-true"));
  const Checkpoint saved = checkpoint::load(path);
  const Begun begun = begin(with(config(), "from", path.string()), path);
  const auto& names = saved.parameters.at("optimizer").front();
  for (std::size_t i = 0; i < names.size(); ++i)
    EXPECT_TRUE(torch::equal(begun.weights().at(names[i]),
                             saved.state.at("optimizer/" + std::to_string(i) + ".master")))
        << names[i];
  EXPECT_THAT(begun.start.said.front(), HasSubstr("the FP32 masters of step 8"));
  // And masters again, with the moments.
  settings::Config again =
      with(with(config("fp16-true"), "from", path.string()), "from-state", "true");
  const Checkpoint now = begin(again, path).saved();
  EXPECT_TRUE(
      torch::equal(now.state.at("optimizer/0.master"), saved.state.at("optimizer/0.master")));
}

TEST_F(StartingWeightsTest, OfAShippedFileAreWidenedAndItSays) {
  trained(config("bf16"));
  const fs::path file = folder_ / "run" / "model.safetensors";
  const Begun begun = begin(with(config(), "from", file.string()), file);
  const NamedTensors saved = checkpoint::load(file).model;
  for (const auto& [name, tensor] : begun.weights())
    EXPECT_TRUE(torch::equal(tensor, saved.at(name).to(at::kFloat))) << name;
  EXPECT_THAT(begun.start.said.front(), AllOf(HasSubstr("the moving average, bf16 widened to fp32"),
                                              HasSubstr("state is new")));
  EXPECT_THAT(refusal(with(with(config(), "from", file.string()), "from-state", "true"), file),
              HasSubstr("there is no optimizer's state in"));
}

TEST_F(StartingWeightsTest, ThatCannotBeTrainedAreRefusedByTensor) {
  const fs::path path = trained(config());
  NamedTensors weights = checkpoint::load(path).model;
  weights.at("layers.2.bias")[3] = 65504;
  EXPECT_EQ(refusal(config("fp16-true"), write(weights)), "accepted");
  weights.at("layers.2.bias")[3] = -65520;
  EXPECT_THAT(refusal(config("fp16-true"), write(weights)),
              AllOf(HasSubstr("a value of layers.2.bias is beyond"), HasSubstr("-65520")));
  EXPECT_EQ(refusal(config("bf16-true"), write(weights)), "accepted");
  const at::Tensor bias = weights.at("layers.2.bias");
  weights.at("layers.2.bias") = at::full({8}, -1e300, at::kDouble);
  EXPECT_THAT(refusal(config(), write(weights)),
              AllOf(HasSubstr("a value of layers.2.bias is beyond the range of fp32"),
                    HasSubstr("-1e+300")));
  EXPECT_EQ(refusal(config("fp64"), write(weights)), "accepted");
  weights.at("layers.2.bias") = bias;
  weights.at("layers.2.bias")[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal(config(), write(weights)),
              AllOf(HasSubstr("is NaN or Inf"), HasSubstr("seen: layers.2.bias")));
  weights.at("layers.2.bias") = at::ones({8}, at::kChar);
  EXPECT_THAT(refusal(config(), write(weights)), HasSubstr("layers.2.bias of int8"));
  weights.at("layers.2.bias") = at::ones({8}, at::kComplexFloat);
  EXPECT_THAT(refusal(config(), write(weights)), HasSubstr("layers.2.bias of complex64"));
}

TEST_F(StartingWeightsTest, HaveTheStateOfTheSameRuleAlone) {
  const fs::path path = trained(with(config(), "ema", "0"));
  settings::Config c = with(with(config(), "from", path.string()), "from-state", "true");
  EXPECT_THAT(refusal(with(c, "optimizer", "lamb"), path),
              AllOf(HasSubstr("that of another update rule; seen: AdamW; accepted: LAMB"),
                    HasSubstr("(--optimizer)")));
  EXPECT_THAT(refusal(with(with(config(), "from", path.string()), "from-average", "true"), path),
              HasSubstr("there is no moving average"));
}

// Truth: state dicts that PyTorch's wrappers wrote (tests/fixtures/state_dicts/make.py).
TEST_F(StartingWeightsTest, MayHaveTheNamesOfPytorchsWrappers) {
  const fs::path files = source_dir() / "tests/fixtures/state_dicts";
  const NamedTensors plain = checkpoint::load(files / "plain.safetensors").model;
  EXPECT_THAT(begin(config(), files / "plain.safetensors").start.said.front(),
              Not(HasSubstr("besides")));
  for (const auto& [name, left_out] :
       std::map<std::string, std::string>{{"compiled", "_orig_mod."},
                                          {"data_parallel", "module."},
                                          {"both", "module._orig_mod."},
                                          {"part", "_orig_mod."},
                                          {"around", "network."}}) {
    const Begun begun = begin(config(), files / (name + ".safetensors"));
    expect_same(begun.weights(), plain);
    EXPECT_THAT(begun.start.said.front(), HasSubstr("names have " + left_out + " besides")) << name;
  }
  NamedTensors others;
  for (const auto& [name, tensor] : plain) others["x." + name + "_v"] = tensor;
  EXPECT_THAT(refusal(config(), write(others)),
              AllOf(HasSubstr("layers.0.weight is missing"), HasSubstr("9 more; the file has "
                                                                       "x.layers.0.bias_v")));
}

// Python's state_dict has a tied weight under both names.
TEST_F(StartingWeightsTest, MayHaveATiedWeightUnderEachOfItsNames) {
  torch::nn::Sequential network(torch::nn::Linear(2, 2));
  network->register_module("again", network->ptr(0));
  const NamedTensors once{{"0.weight", torch::ones({2, 2})}, {"0.bias", torch::ones({2})}};
  NamedTensors both = once;
  both["again.weight"] = once.at("0.weight");
  both["again.bias"] = once.at("0.bias");
  for (const NamedTensors& file : {once, both}) {
    const workload::NamedForNetwork named = workload::name_for(*network, nullptr, file);
    EXPECT_THAT(named.misfits, IsEmpty());
    expect_same(named.tensors, once);
  }
}

TEST_F(StartingWeightsTest, OfARunAreItsNewestWholeCheckpoint) {
  const fs::path run = folder_ / "run", all = run / "checkpoints";
  const Checkpoint saved{.model = {{"w", torch::ones({3})}}};
  const fs::path first = checkpoint::save(all, 1, saved, {.keep_last = 0, .is_best = true});
  const fs::path second = checkpoint::save(all, 2, saved, {.keep_last = 0});
  std::vector<std::string> said;
  const auto note = [&](const fs::path& path, const std::string&) {
    said.push_back(path.filename());
  };
  for (const fs::path& path : {run, all, all / "last", second})
    EXPECT_EQ(find_start(path, note), second);
  EXPECT_EQ(find_start(all / "best", note), first);
  EXPECT_THAT(said, IsEmpty());
  std::ofstream(second / "model.safetensors", std::ios::app) << "x";
  EXPECT_EQ(find_start(run, note), first);
  EXPECT_EQ(find_start(all, note), first);
  EXPECT_THAT(said, ::testing::ElementsAre("step-00000002", "step-00000002"));
  EXPECT_EQ(find_start(second, note), second) << "one that is named is taken, and refused if read";
  EXPECT_TRUE(fs::exists(second)) << "another run may hold the folder";
  EXPECT_THROW(find_start(folder_ / "none", note), DataError);
}

TEST_F(StartingWeightsTest, OfTorchSaveAreToldTheLinesOfPython) {
  for (const std::string begin : {"PK\x03\x04rest", "\x80\x02rest"}) {
    std::ofstream(folder_ / "net.pth", std::ios::binary) << begin;
    try {
      find_start(folder_ / "net.pth", {});
      ADD_FAILURE();
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("safetensors.torch.save_file(torch.load("),
                                      HasSubstr("net.safetensors")));
    }
  }
}

// --- pictures: classes, normalisation, torchvision's names

settings::Config pictures(const std::string& model) {
  settings::Config c;
  c.model = model;
  c.data = "synthetic-images";
  c.optimizer = "sgd";
  c.momentum = 0.9;
  c.device = "cpu";
  return c;
}

workload::Workload workload_of(const settings::Config& c, std::vector<std::string> classes) {
  workload::Workload workload;
  workload.classes = std::move(classes);
  workload.shape = {.channels = 3, .size = 32, .classes = std::ssize(workload.classes)};
  workload.input.kind = data::Kind::pictures;
  workload.make_network = [c, shape = workload.shape](uint64_t seed) {
    return workload::make_network(c, shape, seed, c10::kCPU);
  };
  return workload;
}

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) all[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) all[item.key()] = item.value().detach();
  return all;
}

NamedTensors as_torchvision(const NamedTensors& own, const models::ModelInfo& model) {
  NamedTensors all;
  for (const auto& [name, tensor] : own) all[model.torchvision->name_of(name)] = tensor;
  return all;
}

// The load of examples/fine_tuning_resnet.
models::ResNet loaded_by_hand(const NamedTensors& file, int64_t classes, bool with_classifier) {
  auto options = models::ResNetOptions::resnet50();
  options.stem = models::ResNetStem::imagenet;
  options.classes = classes;
  models::ResNet network(options);
  NamedTensors tensors = tensors_of(*network);
  for (auto& [name, tensor] : tensors)
    if (with_classifier || !name.starts_with("classifier."))
      tensor = file.at(models::torchvision_name(name, options));
  checkpoint::restore({.model = tensors}, {.models = {network.ptr().get()}, .random = false});
  for (at::Tensor& weight : network->parameters())  // the program's layout, which rounds otherwise
    if (weight.dim() == 4) weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
  network->eval();
  return network;
}

TEST_F(StartingWeightsTest, OfTorchvisionsResNet50GiveTheLogitsOfAProgramOfItsOwn) {
  const settings::Config c = pictures("resnet50-imagenet");
  const workload::Workload five = workload_of(c, {"a", "b", "c", "d", "e"});
  const auto trained = five.make_network(3);
  const NamedTensors file =
      as_torchvision(tensors_of(*trained.module), models::find_model(c.model));
  EXPECT_TRUE(file.contains("layer1.0.conv1.weight") && file.contains("fc.weight"));
  const fs::path path = write(file);
  const Begun begun = begin(c, path, five);
  begun.network.module->eval();
  EXPECT_THAT(begun.start.said.front(), HasSubstr("under torchvision's names"));
  const torch::NoGradGuard no_grad;
  const at::Tensor input = torch::arange(2 * 3 * 64 * 64, at::kFloat).sin().reshape({2, 3, 64, 64});
  const auto logits = [&](const train::Network& network) {
    return network.forward({.input = input, .target = {}});
  };
  EXPECT_TRUE(torch::equal(logits(begun.network), loaded_by_hand(file, 5, true)->forward(input)));

  const Begun three = begin(c, path, workload_of(c, {"x", "y", "z"}));
  three.network.module->eval();
  EXPECT_THAT(three.start.said.front(),
              HasSubstr("the head classifier is new: (3, 2048), in the file (5, 2048)"));
  models::ResNet by_hand = loaded_by_hand(file, 3, false);
  const NamedTensors head = tensors_of(*by_hand);
  for (const auto& item : three.network.module->named_parameters())
    if (item.key().starts_with("classifier.")) item.value().copy_(head.at(item.key()));
  EXPECT_TRUE(torch::equal(logits(three.network), by_hand->forward(input)));
}

TEST_F(StartingWeightsTest, OfPythonsCheckpointComeWithTheirMoments) {
  const settings::Config c = with(with(pictures("resnet18"), "from", "x"), "from-state", "true");
  const workload::Workload workload = workload_of(c, {"a", "b"});
  Begun source{.network = workload.make_network(3), .start = {}};
  source.optimizer = settings::make_optimizer(settings::resolve(c), source.network);
  for (const at::Tensor& parameter : source.network.module->parameters())
    parameter.mutable_grad() = parameter.detach().cos();
  source.optimizer->step();
  Checkpoint saved = source.saved();
  const models::ModelInfo& model = models::find_model(c.model);
  saved.model = as_torchvision(saved.model, model);
  for (auto& group : saved.parameters.at("optimizer")) {
    for (std::string& name : group) name = model.torchvision->name_of(name);
    std::ranges::reverse(group);  // Python's own order
  }
  NamedTensors state;
  const std::size_t count = saved.parameters.at("optimizer").front().size();
  for (std::size_t i = 0; i < count; ++i)
    for (const char* part : {".momentum_buffer", ".step"})
      state["optimizer/" + std::to_string(count - 1 - i) + part] =
          saved.state.at("optimizer/" + std::to_string(i) + part);
  saved.state = state;
  const fs::path path = checkpoint::save(folder_ / "python", 500, saved);
  const Begun begun = begin(c, path, workload);
  expect_same(begun.weights(), copy(source.weights()));
  expect_same(begun.saved().state, [&] {
    NamedTensors expected = source.saved().state;
    expected.at("optimizer/taken") = at::scalar_tensor(int64_t{0}, at::kLong);
    return expected;
  }());
}

TEST_F(StartingWeightsTest, OfTorchvisionsVgg19LeaveItsThreeLinearLayers) {
  const settings::Config c = pictures("vgg19");
  const workload::Workload workload = workload_of(c, {"a", "b"});
  const auto trained = workload.make_network(3);
  NamedTensors file;
  for (const auto& [name, tensor] : tensors_of(*trained.module))
    if (const std::string there = models::vgg19_name(name);
        !there.empty() && !there.ends_with(".num_batches_tracked"))
      file[there] = tensor;
  EXPECT_EQ(file.size(), 96U);
  for (const char* layer : {"0", "3", "6"})
    file["classifier." + std::string(layer) + ".weight"] = torch::ones({1});
  const Begun begun = begin(c, write(file), workload);
  for (const auto& [name, tensor] : begun.weights()) {
    const bool is_head = name.starts_with("layers.54.");
    EXPECT_TRUE(torch::equal(
        tensor, is_head ? begun.initial.at(name) : tensors_of(*trained.module).at(name)))
        << name;
  }
  EXPECT_THAT(begun.start.said.front(), HasSubstr("the head layers.54 is new: (2, 512);"));
  file["features.52.more"] = torch::ones({1});
  EXPECT_THAT(refusal(c, write(file), workload),
              HasSubstr("seen: features.52.more is of no part of the model"));
  file.erase("features.52.more");
  file["classifiers.0.weight"] = torch::ones({1});
  EXPECT_THAT(refusal(c, write(file), workload),
              HasSubstr("seen: classifiers.0.weight is of no part of the model"));
}

TEST_F(StartingWeightsTest, SayWhatTheFileSaysOtherwise) {
  settings::Config c = pictures("simple-cnn");
  workload::Workload workload = workload_of(c, {"ant", "bee", "cat"});
  workload.input.mean = workload.input.std = {0.5, 0.5, 0.5};
  const auto network = workload.make_network(3);
  const fs::path file = folder_ / "model.safetensors";
  checkpoint::Metadata texts =
      workload::model_texts(settings::resolve(c), workload, /*is_average=*/false);
  texts["demi.config"] = settings::to_json(c);
  texts["demi.precision"] = "fp32";
  checkpoint::save_safetensors(file, tensors_of(*network.module), texts);
  EXPECT_EQ(begin(c, file, workload).start.said.size(), 1U);
  workload::Workload other = workload_of(c, {"ant", "cat", "bee"});
  const auto said = begin(c, file, other).start.said;
  ASSERT_EQ(said.size(), 3U);
  EXPECT_THAT(said[1], AllOf(HasSubstr("ant, bee, cat"), HasSubstr("class 1 was bee and is cat")));
  EXPECT_THAT(said[2], HasSubstr("mean 0.5, 0.5, 0.5"));
  EXPECT_EQ(begin(c, file, workload_of(c, {"a", "b"})).start.said.size(), 2U)
      << "a new head has no classes of the file";
}

TEST_F(StartingWeightsTest, OfOtherWordsOrAnotherPoolAreRefused) {
  settings::Config c;
  c.model = "lstm";
  c.data = "imdb";
  c.model_settings = {{"embedding", "4"}, {"hidden", "4"}};
  c.device = "cpu";
  const auto texts_of = [&](std::vector<std::string> words) {
    workload::Workload workload = workload_of(c, {"bad", "good"});
    workload.input = {.kind = data::Kind::texts};
    workload.shape = {.classes = 2, .vocabulary = std::ssize(words)};
    workload.vocabulary = std::make_shared<const data::Vocabulary>(std::move(words));
    workload.make_network = [c, shape = workload.shape](uint64_t seed) {
      return workload::make_network(c, shape, seed, c10::kCPU);
    };
    return workload;
  };
  const workload::Workload workload = texts_of({"<unk>", "film", "good"});
  const auto network = workload.make_network(3);
  const fs::path file = folder_ / "model.safetensors";
  checkpoint::Metadata texts = workload::model_texts(settings::resolve(c), workload, false);
  texts["demi.config"] = settings::to_json(c);
  texts["demi.precision"] = "fp32";
  checkpoint::save_safetensors(file, tensors_of(*network.module), texts);
  EXPECT_EQ(refusal(c, file, workload), "accepted");
  EXPECT_THAT(refusal(c, file, texts_of({"<unk>", "film", "bad"})),
              AllOf(HasSubstr("word 2 is good"), HasSubstr("accepted: bad, as in the data")));
  EXPECT_THAT(refusal(c, file, texts_of({"<unk>", "film"})),
              AllOf(HasSubstr("embedding.weight (3, 4) for (2, 4)"),
                    HasSubstr("vocabulary has 3 entries, and the run's 2")));
  EXPECT_THAT(refusal(with(c, "pool", "mean"), file, workload), HasSubstr("add --pool last"));
}

TEST_F(StartingWeightsTest, OfAnotherGptAreRefusedByItsOptions) {
  settings::Config c = settings::find_recipe("gpt-shakespeare").config;
  c.model_settings = {{"depth", "1"}, {"heads", "2"}, {"embedding", "8"}, {"bias", "false"}};
  c.context = 8;
  c.device = "cpu";
  const auto workload_for = [](const settings::Config& config) {
    workload::Workload workload = workload_of(config, {});
    workload.input = {.kind = data::Kind::tokens};
    workload.shape = {.vocabulary = 5};
    workload.tokenizer = {.name = "characters", .vocabulary = "abcde"};
    workload.make_network = [config, shape = workload.shape](uint64_t seed) {
      return workload::make_network(config, shape, seed, c10::kCPU);
    };
    return workload;
  };
  const workload::Workload workload = workload_for(c);
  const auto network = workload.make_network(3);
  const fs::path file = folder_ / "model.safetensors";
  checkpoint::Metadata texts = workload::model_texts(settings::resolve(c), workload, false);
  texts["demi.config"] = settings::to_json(c);
  texts["demi.precision"] = "fp32";
  checkpoint::save_safetensors(file, tensors_of(*network.module), texts);
  EXPECT_EQ(refusal(c, file, workload), "accepted");
  for (const auto& [name, value, said] : std::initializer_list<std::array<const char*, 3>>{
           {"heads", "4", "seen: --heads 4; accepted: --heads 2; add --heads 2"},
           {"depth", "2", "the file's model is that of --depth 1"},
           {"embedding", "16", "the file's model is that of --embedding 8"},
           {"context", "16", "the file's model is that of --context 8"},
           {"block", "llama", "--block gpt2"}}) {
    const settings::Config other = with(c, name, value);
    EXPECT_THAT(refusal(other, file, workload_for(other)), HasSubstr(said));
  }
}

}  // namespace
}  // namespace demi::recipes

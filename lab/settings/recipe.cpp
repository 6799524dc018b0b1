#include "lab/settings/recipe.h"

#include <cctype>
#include <filesystem>
#include <map>
#include <mutex>

#include "demi/core/error.h"
#include "lab/find_by_name.h"
#include "lab/models/imported.h"

namespace demi::settings {
namespace {

// The AMP recipe: 150 steps of a multilayer perceptron on rows from randn.
Config mlp() {
  Config c;
  c.model = "mlp";
  c.data = "synthetic-rows";
  c.epochs = 3;
  c.batch_size = 512;
  c.optimizer = "sgd";
  c.lr = 1e-3;
  c.loss = "mse";
  return c;
}

Config fashion_cnn() {
  Config c;
  c.model = "fashion-cnn";
  c.data = "fashion-mnist";
  c.epochs = 3;
  c.batch_size = 256;
  c.optimizer = "adamw";
  c.lr = 1e-2;
  c.weight_decay = 1e-2;
  c.schedule = "one-cycle";
  c.cudnn_benchmark = true;
  return c;
}

Config mnist_cnn() {
  Config c = fashion_cnn();
  c.data = "mnist";
  return c;
}

Config cifar10_cnn() {
  Config c;
  c.model = "simple-cnn";
  c.data = "cifar10";
  c.epochs = 5;
  c.batch_size = 64;
  c.optimizer = "adam";
  c.lr = 1e-3;
  c.normalize = "half";
  c.cudnn_benchmark = true;
  return c;
}

// The published CIFAR-10 recipe: 200 epochs of half a cosine, of which a run here makes 5.
Config cifar10(std::string model) {
  Config c;
  c.model = std::move(model);
  c.data = "cifar10";
  c.epochs = 5;
  c.batch_size = 128;
  c.test_batch_size = 100;
  c.optimizer = "sgd";
  c.lr = 0.1;
  c.momentum = 0.9;
  c.weight_decay = 5e-4;
  c.schedule = "cosine";
  c.schedule_epochs = 200;
  c.crop_padding = 4;
  c.horizontal_flip = true;
  c.cudnn_benchmark = true;
  return c;
}

Config synthetic_resnet50() {
  Config c;
  c.model = "resnet50-imagenet";
  c.data = "synthetic-images";
  c.batches = 10;
  c.batch_size = 32;
  c.optimizer = "sgd";
  c.lr = 0.0125;  // 0.1 for 256 (Goyal et al. 2017); 0.1 for 32 diverges in the first steps
  c.momentum = 0.9;
  c.weight_decay = 1e-4;
  c.cudnn_benchmark = true;
  return c;
}

// Half a cosine over ImageNet's usual 90 epochs.
Config folder_resnet50() {
  Config c = synthetic_resnet50();
  c.data = "folder";
  c.batches = Config().batches;
  c.batch_size = 256;
  c.lr = 0.1;
  c.test_batch_size = 100;
  c.epochs = 90;
  c.schedule = "cosine";
  c.horizontal_flip = true;
  c.workers = 4;
  return c;
}

// Trained weights need small steps and few epochs; a small folder small batches, so that an epoch
// has several. 0.01 for 32 pictures is the rate of PyTorch's transfer learning tutorial (0.001 for
// 4), scaled with the batch.
std::vector<std::pair<std::string, std::string>> fine_tuned_resnet50() {
  return {{"epochs", "15"}, {"batch-size", "32"}, {"lr", "0.01"}, {"warmup-epochs", "1"}};
}

Config imdb_lstm() {
  Config c;
  c.model = "lstm";
  c.data = "imdb";
  c.epochs = 5;
  c.batch_size = 64;
  c.test_batch_size = 64;
  c.optimizer = "adam";
  c.lr = 1e-3;
  c.loss = "bce";
  c.clip_norm = 1;
  return c;
}

// GPT-2 as llm.c trains it on 10 billion tokens of FineWeb (discussion 481 there).
Config gpt2() {
  Config c;
  c.model = "gpt";
  c.data = "tokens";
  c.model_settings = {{"depth", "12"}, {"heads", "12"}, {"embedding", "768"}};
  c.context = 1024;
  c.vocabulary_size = 50257;
  c.batch_size = 16;
  c.test_batch_size = 16;
  c.tokens_per_step = 524288;
  c.steps = 18865;
  c.epochs = 76;
  c.optimizer = "adamw";
  c.betas = "0.9,0.95";
  c.lr = 6e-4;
  c.weight_decay = 0.1;
  c.decay_by_rule = true;
  c.schedule = "cosine-by-step";
  c.schedule_steps = 18865;
  c.warmup_steps = 700;
  c.clip_norm = 1;
  return c;
}

// nanoGPT's training on characters of Shakespeare on a CPU (its readme, "I only have a macbook").
Config gpt_shakespeare() {
  Config c;
  c.model = "gpt";
  c.data = "shakespeare";
  c.model_settings = {{"depth", "4"}, {"heads", "4"}, {"embedding", "128"}, {"bias", "false"}};
  c.context = 64;
  c.batch_size = 12;
  c.epochs = 8;
  c.test_batch_size = 64;
  c.optimizer = "adamw";
  c.betas = "0.9,0.99";
  c.lr = 1e-3;
  c.min_lr = 1e-4;
  c.weight_decay = 0.1;
  c.decay_by_rule = true;
  c.schedule = "cosine-by-step";
  c.schedule_steps = 2000;
  c.warmup_steps = 100;
  c.clip_norm = 1;
  return c;
}

// nanoGPT's training on characters on a GPU (config/train_shakespeare_char.py).
std::vector<std::pair<std::string, std::string>> gpt_shakespeare_on_gpu() {
  return {
      {"depth", "6"},     {"heads", "6"},       {"embedding", "384"}, {"context", "256"},
      {"dropout", "0.2"}, {"batch-size", "64"}, {"epochs", "20"},     {"schedule-steps", "5000"}};
}

// Gradients under 2^-24, which fp16 rounds to 0: the loss has a weight of 1e-7, for which the
// learning rate makes up. The scale doubles so often that it soon overflows, too.
Config loss_scaling() {
  Config c;
  c.model = "mlp";
  c.data = "synthetic-linear";
  c.in = 64;
  c.out = 1;
  c.model_settings = {{"depth", "2"}};
  c.batches = 100;
  c.epochs = 4;
  c.batch_size = 256;
  c.optimizer = "sgd";
  c.lr = 1e6;
  c.loss = "mse";
  c.loss_weight = 1e-7;
  c.growth_interval = 10;
  return c;
}

}  // namespace

std::span<const Recipe> recipes() {
  static const std::vector<Recipe> all{
      {"fashion-cnn",
       "five 3 x 3 convolutions with BatchNorm on the 60,000 pictures of Fashion-MNIST (the main "
       "job)",
       fashion_cnn()},
      {"mnist-cnn", "five 3 x 3 convolutions with BatchNorm on the 60,000 digits of MNIST",
       mnist_cnn()},
      {"mlp", "the AMP recipe: Linear and ReLU on rows from randn, mean squared error", mlp(),
       /*prints_totals=*/true},
      {"cifar10-cnn", "two convolutions and one linear layer on CIFAR-10", cifar10_cnn()},
      {"cifar10-resnet18", "ResNet-18 on CIFAR-10", cifar10("resnet18")},
      {"cifar10-resnet50", "ResNet-50 on CIFAR-10", cifar10("resnet50")},
      {"cifar10-vgg19", "VGG-19 with BatchNorm on CIFAR-10", cifar10("vgg19")},
      {"synthetic-resnet50", "ResNet-50 with ImageNet's stem on random pictures",
       synthetic_resnet50()},
      {"folder-resnet50", "ResNet-50 with ImageNet's stem on a folder of pictures: --data-dir",
       folder_resnet50(), /*prints_totals=*/false, /*runs=*/"", fine_tuned_resnet50()},
      {"imdb-lstm", "embedding and LSTM on the 25,000 reviews of the Large Movie Review set",
       imdb_lstm()},
      {"gpt2", "GPT-2 with 124,439,808 parameters on token files: --train-file, --test-file",
       gpt2()},
      {"gpt-shakespeare",
       "a transformer of 804,096 parameters (10,745,088 on a GPU) on the characters of "
       "Shakespeare's "
       "plays",
       gpt_shakespeare(), /*prints_totals=*/false, /*runs=*/"", /*fine_tuning=*/{},
       gpt_shakespeare_on_gpu()},
      {"loss-scaling", "why the loss is scaled: a small network whose gradients fp16 rounds to 0",
       loss_scaling(), /*prints_totals=*/false, /*runs=*/"fp32,fp16:no-scaler,fp16"},
  };
  return all;
}

Config config_of(const Recipe& recipe, Circumstances circumstances) {
  Config config = recipe.config;
  if (circumstances.on_gpu)
    for (const auto& [name, value] : recipe.on_gpu) set(config, name, value, recipe.name);
  if (circumstances.starts_from_weights)
    for (const auto& [name, value] : recipe.fine_tuning) set(config, name, value, recipe.name);
  return config;
}

namespace {

// Sizes that the file fixes, which data that are scaled or made could have otherwise.
Config config_of_file(const models::ImportedFile& file) {
  Config c;
  c.model = file.info.name;
  const imported::GraphSummary& graph = file.summary.graphs.front();
  const auto& sizes = graph.arguments.front().sizes;
  if (file.info.reads == data::Kind::rows) {
    // A network that computes its loss has the target as its second input.
    const auto target = graph.arguments.size() == 2 ? graph.arguments[1].sizes
                        : graph.outputs == 1        ? graph.output_sizes[0]
                                                    : std::vector<imported::SizeSummary>();
    if (target.size() == 2 && target[1].is_fixed()) c.out = target[1].least;
  }
  if (sizes.size() < 2) return c;
  if (file.info.reads == data::Kind::texts && sizes.back().has_most())
    c.max_length = sizes.back().most;
  if (!sizes.back().is_fixed()) return c;
  constexpr int64_t kLeastPicture = 32;  // of the setting; smaller data sets have their own
  if (file.info.reads == data::Kind::pictures && sizes.back().least >= kLeastPicture)
    c.image_size = sizes.back().least;
  if (file.info.reads == data::Kind::rows) c.in = sizes.back().least;
  if (file.info.reads == data::Kind::texts) c.context = sizes.back().least;
  return c;
}

const Recipe& recipe_of_file(std::string_view name) {
  static std::mutex mutex;
  static std::map<const models::ImportedFile*, Recipe> known;
  const models::ImportedFile& file = models::imported_file(name);
  const std::scoped_lock lock(mutex);
  const auto [found, is_new] = known.try_emplace(&file);
  if (is_new)
    found->second = {
        .name = file.info.name, .title = file.info.title, .config = config_of_file(file)};
  return found->second;
}

}  // namespace

std::string folder_name(std::string_view recipe) {
  if (!models::is_network_file(recipe)) return std::string(recipe);
  std::string name = std::filesystem::path(recipe).stem().string();
  for (char& c : name) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
    if (!is_plain) c = '_';
  }
  return name;
}

const Recipe& find_recipe(std::string_view name) {
  if (models::is_network_file(name)) return recipe_of_file(name);
  if (name.find('.') != name.npos)
    throw UsageError({.where = "settings.find_recipe",
                      .what = "no such recipe, and no .pt2 file, which a network from Python is",
                      .seen = name,
                      .accepted = "a recipe of `demi train --list`, or NAME.pt2",
                      .advice = "export the network in Python: docs/guide/python_model.md"});
  return lab::find_by_name(recipes(), name, "settings.find_recipe", "no such recipe");
}

}  // namespace demi::settings

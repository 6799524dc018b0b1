#include "lab/models/registry.h"

#include <torch/nn/modules/container/sequential.h>

#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/tensor/module_tensors.h"
#include "lab/find_by_name.h"
#include "lab/models/check.h"
#include "lab/models/fashion_cnn.h"
#include "lab/models/gpt.h"
#include "lab/models/imported.h"
#include "lab/models/mlp.h"
#include "lab/models/resnet.h"
#include "lab/models/seeded.h"
#include "lab/models/simple_cnn.h"
#include "lab/models/vgg.h"

namespace demi::models {
namespace {

train::Network make_mlp(const ModelOptions& given) {
  MLPOptions options;
  options.in = given.in.value_or(options.in);
  options.out = given.out.value_or(options.out);
  options.layers = given.layers.value_or(options.layers);
  return train::network(MLP(options));
}

template <typename Holder, typename Options>
train::Network make_for_pictures(const ModelOptions& given, Options options) {
  options.channels = given.channels.value_or(options.channels);
  options.classes = given.classes.value_or(options.classes);
  if constexpr (requires { options.recompute; }) options.recompute = given.recompute;
  if constexpr (requires { options.size; }) options.size = given.size.value_or(options.size);
  return train::network(Holder(options));
}

train::Network make_imagenet_resnet50(const ModelOptions& given) {
  ResNetOptions options = ResNetOptions::resnet50();
  options.stem = ResNetStem::imagenet;
  options.classes = 1000;
  return make_for_pictures<ResNet>(given, options);
}

template <ResNetOptions (*options)()>
std::string resnet_name(std::string_view own) {
  return torchvision_name(own, options());
}

train::Network make_lstm(const ModelOptions& given) {
  LSTMClassifierOptions options{.pool = given.pool, .bidirectional = given.bidirectional};
  options.vocabulary = given.vocabulary.value_or(options.vocabulary);
  options.embedding = given.embedding.value_or(options.embedding);
  options.hidden = given.hidden.value_or(options.hidden);
  const int64_t classes = given.classes.value_or(2);
  require_positive("models.LSTMClassifier", "classes", classes);
  options.outputs = classes > 2 ? classes : 1;
  return train::network(LSTMClassifier(options));
}

// Logits as losses and metrics take them: the classes are the second dimension.
train::Network make_gpt(const ModelOptions& given) {
  GPT model(gpt_options(given));
  train::Network network;
  network.module = model.ptr();
  network.forward = [model](const data::Batch& batch) mutable {
    return model->forward(batch.input).transpose(1, 2);
  };
  network.loss = [model](const data::Batch& batch, double label_smoothing) mutable {
    auto [loss, right] = model->loss_and_right(batch.input, batch.target, label_smoothing);
    return train::OwnLoss{std::move(loss), std::move(right)};
  };
  return network;
}

double gpt_flop(const ModelOptions& given) {
  const GPTOptions options = gpt_options(given);
  return training_flop(options, options.context);
}

}  // namespace

GPTOptions gpt_options(const ModelOptions& given) {
  GPTOptions options{.key_heads = given.key_heads,
                     .hidden = given.feed_forward,
                     .form = parse_gpt_form(given.block),
                     .bias = given.bias,
                     .dropout = given.dropout,
                     .eps = given.norm_eps,
                     .rope_theta = given.rope_theta,
                     .tied_head = given.tied_head,
                     .recompute = given.recompute};
  options.vocabulary = given.vocabulary.value_or(options.vocabulary);
  options.context = given.context.value_or(options.context);
  options.width = given.embedding.value_or(options.width);
  options.layers = given.layers.value_or(options.layers);
  options.heads = given.heads.value_or(options.heads);
  return options;
}

std::span<const ModelInfo> models() {
  static const std::vector<ModelInfo> all{
      {.name = "fashion-cnn",
       .title = "five 3 x 3 convolutions of 32, 64, 128 channels with BatchNorm",
       .reads = data::Kind::pictures,
       .make =
           [](const ModelOptions& o) {
             return make_for_pictures<FashionCNN>(o, FashionCNNOptions());
           },
       .pictures = PictureShape{1, 28, 10}},
      {.name = "simple-cnn",
       .title = "two 3 x 3 convolutions and one linear layer",
       .reads = data::Kind::pictures,
       .make =
           [](const ModelOptions& o) {
             return make_for_pictures<SimpleCNN>(o, SimpleCNNOptions());
           },
       .head = "layers"},
      {.name = "resnet18",
       .title = "ResNet-18 with a 3 x 3 stem",
       .reads = data::Kind::pictures,
       .make =
           [](const ModelOptions& o) {
             return make_for_pictures<ResNet>(o, ResNetOptions::resnet18());
           },
       .torchvision = TorchvisionNames{resnet_name<ResNetOptions::resnet18>}},
      {.name = "resnet50",
       .title = "ResNet-50 with a 3 x 3 stem",
       .reads = data::Kind::pictures,
       .make =
           [](const ModelOptions& o) {
             return make_for_pictures<ResNet>(o, ResNetOptions::resnet50());
           },
       .torchvision = TorchvisionNames{resnet_name<ResNetOptions::resnet50>}},
      {.name = "resnet50-imagenet",
       .title = "ResNet-50 with ImageNet's 7 x 7 stem and 1000 classes",
       .reads = data::Kind::pictures,
       .make = make_imagenet_resnet50,
       .pictures = std::nullopt,
       .torchvision = TorchvisionNames{resnet_name<ResNetOptions::resnet50>}},
      {.name = "vgg19",
       .title = "VGG-19 with BatchNorm for pictures of 32 x 32",
       .reads = data::Kind::pictures,
       .make = [](const ModelOptions& o) { return make_for_pictures<VGG19>(o, VGG19Options()); },
       .head = "layers",
       .torchvision = TorchvisionNames{vgg19_name, /*left_out=*/"classifier"}},
      {.name = "mlp",
       .title = "Linear layers with ReLU between them",
       .reads = data::Kind::rows,
       .make = make_mlp,
       .head = "layers"},
      {.name = "lstm",
       .title = "embedding, one LSTM layer, pooling, one linear layer",
       .reads = data::Kind::texts,
       .make = make_lstm,
       .pictures = std::nullopt,
       .one_logit_for_two_classes = true},
      {.name = "gpt",
       .title = "a transformer that predicts the next token",
       .reads = data::Kind::tokens,
       .make = make_gpt,
       .pictures = std::nullopt,
       .head = "",
       .training_flop = gpt_flop},
  };
  return all;
}

std::string head_of(const ModelInfo& info, const torch::nn::Module& model) {
  std::string name = info.head;
  const auto modules = model.named_modules("", /*include_self=*/false);
  for (const auto* found = modules.find(name);
       found != nullptr && (*found)->as<torch::nn::Sequential>() != nullptr;
       found = modules.find(name))
    name += "." + (*found)->named_children().keys().back();
  return name;
}

const ModelInfo& find_model(std::string_view name) {
  if (is_network_file(name)) return imported_file(name).info;
  return lab::find_by_name(models(), name, "models.find_model", "no such model");
}

bool reads(const ModelInfo& model, data::Kind kind) {
  const bool reads_numbers = model.is_file && model.reads == data::Kind::texts;
  return model.reads == kind || (reads_numbers && kind == data::Kind::tokens);
}

train::Network make_model(std::string_view name, const ModelOptions& options, uint64_t seed) {
  const ModelInfo& info = find_model(name);
  const Seeded seeded(seed);
  return info.make(options);
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& [name, parameter] : tensor::parameters_once(module))
    if (parameter.requires_grad()) count += parameter.numel();
  return count;
}

std::optional<bool> parse_tied_head(std::string_view name) {
  if (name == "auto") return std::nullopt;
  if (name == "on" || name == "off") return name == "on";
  refuse({.where = "models.parse_tied_head",
          .what = "no such head",
          .seen = name,
          .accepted = "auto, on, off"});
}

std::optional<Keep> parse_recompute(std::string_view name) {
  if (name == "none") return std::nullopt;
  if (name == "blocks") return Keep::nothing;
  if (name == "products") return Keep::products;
  refuse({.where = "models.parse_recompute",
          .what = "no such way to recompute",
          .seen = name,
          .accepted = "none, blocks, products"});
}

Pool parse_pool(std::string_view name) {
  if (name == "last") return Pool::last;
  if (name == "mean") return Pool::mean;
  if (name == "max") return Pool::max;
  const std::vector<std::string> known{"last", "mean", "max"};
  refuse({.where = "models.parse_pool",
          .what = "no such pooling",
          .seen = name,
          .advice = did_you_mean(name, known)});
}

}  // namespace demi::models

#include "lab/models/resnet.h"

#include <fmt/format.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "demi/core/error.h"
#include "demi/nn/batch_norm.h"
#include "lab/models/check.h"
#include "lab/models/entries.h"
#include "lab/models/for_pictures.h"

namespace demi::models {
namespace {

using namespace torch::nn;

Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  Conv2d layer(Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  init::kaiming_normal_(layer->weight, 0.0, torch::kFanOut, torch::kReLU);
  return layer;
}

nn::BatchNorm2d norm(int64_t width) { return nn::BatchNorm2d(nn::BatchNorm2dOptions(width)); }
nn::BatchNorm2d norm_relu(int64_t width, const MaxPooling& pool = {}) {
  return nn::BatchNorm2d(nn::BatchNorm2dOptions(width).relu(true).pool(pool));
}
/// Stands for a ReLU that the normalisation before it computes: the names of the layers that
/// follow count it.
Identity in_place_of_relu() { return {}; }

/// relu(body(x) + shortcut(x)), where the last normalisation of the body computes sum and ReLU; the
/// shortcut is the identity where shapes agree.
class BlockImpl : public demi::nn::Cloneable<BlockImpl> {
 public:
  BlockImpl(ResNetBlock kind, int64_t in, int64_t width, int64_t stride)
      : kind_(kind), in_(in), width_(width), stride_(stride) {
    BlockImpl::reset();
  }

  void reset() override {
    const int64_t out = kind_ == ResNetBlock::basic ? width_ : 4 * width_;
    if (kind_ == ResNetBlock::basic) {
      body_ = Sequential(convolution(in_, width_, 3, stride_), norm_relu(width_),
                         in_place_of_relu(), convolution(width_, width_, 3), norm_relu(width_));
    } else {
      body_ = Sequential(convolution(in_, width_, 1), norm_relu(width_), in_place_of_relu(),
                         convolution(width_, width_, 3, stride_), norm_relu(width_),
                         in_place_of_relu(), convolution(width_, out, 1), norm_relu(out));
    }
    register_module("body", body_);
    if (in_ == out && stride_ == 1) return;
    shortcut_ =
        register_module("shortcut", Sequential(convolution(in_, out, 1, stride_), norm(out)));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor inner = x;
    const auto last = body_->end() - 1;
    for (auto layer = body_->begin(); layer != last; ++layer) inner = layer->forward(inner);
    return last->get<nn::BatchNorm2dImpl>().forward_add(inner,
                                                        shortcut_ ? shortcut_->forward(x) : x);
  }

 private:
  ResNetBlock kind_;
  int64_t in_, width_, stride_;
  Sequential body_;
  Sequential shortcut_{nullptr};
};
TORCH_MODULE(Block);

/// A name, part by part: "stages.3.body.0.weight".
struct Parts {
  std::string_view left;

  std::string_view next() {
    const std::size_t dot = left.find('.');
    const std::string_view part = left.substr(0, dot);
    left.remove_prefix(dot == std::string_view::npos ? left.size() : dot + 1);
    return part;
  }
  int64_t number() {
    const std::string_view part = next();
    int64_t value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() ? value : -1;
  }
};

/// "layer2.1" for the block of that number, counted through all stages.
std::optional<std::string> block_name(int64_t block, const ResNetOptions& options) {
  for (std::size_t stage = 0; block >= 0 && stage < options.depths.size(); ++stage) {
    if (block < options.depths[stage]) return fmt::format("layer{}.{}", stage + 1, block);
    block -= options.depths[stage];
  }
  return std::nullopt;
}

/// A body is convolution, normalisation, ReLU, convolution, normalisation ...
std::optional<std::string> layer_name(int64_t index, int64_t convolutions) {
  if (index < 0 || index / 3 >= convolutions || index % 3 == 2) return std::nullopt;
  return fmt::format("{}{}", index % 3 == 0 ? "conv" : "bn", index / 3 + 1);
}

std::optional<std::string> part_of_block(Parts& parts, const ResNetOptions& options) {
  const std::string_view branch = parts.next();
  const int64_t index = parts.number();
  if (branch == "body") return layer_name(index, options.block == ResNetBlock::basic ? 2 : 3);
  if (branch == "shortcut" && (index == 0 || index == 1))
    return fmt::format("downsample.{}", index);
  return std::nullopt;
}

std::optional<std::string> module_name(Parts& parts, const ResNetOptions& options) {
  const std::string_view first = parts.next();
  if (first == "classifier") return "fc";
  if (first == "stem") return layer_name(parts.number(), 1);
  if (first != "stages") return std::nullopt;
  const auto block = block_name(parts.number(), options);
  const auto part = part_of_block(parts, options);
  if (!block || !part) return std::nullopt;
  return *block + "." + *part;
}

}  // namespace

ResNetImpl::ResNetImpl(const ResNetOptions& options)
    : options_(options), stride_(options.stem == ResNetStem::imagenet ? 32 : 8) {
  constexpr std::string_view kWhere = "models.ResNet";
  require_positive(kWhere, "channels", options.channels);
  require_positive(kWhere, "classes", options.classes);
  for (const int64_t depth : options.depths) require_positive(kWhere, "depths", depth);
  ResNetImpl::reset();
}

void ResNetImpl::reset() {
  const ResNetOptions& options = options_;
  // First of all layers: a seed's initial weights follow the order in which layers are made.
  classifier_ = Linear(options.block == ResNetBlock::basic ? 512 : 2048, options.classes);
  const bool imagenet = options.stem == ResNetStem::imagenet;
  stem_ = Sequential(
      imagenet ? convolution(options.channels, 64, 7, 2) : convolution(options.channels, 64, 3),
      norm_relu(64, imagenet ? MaxPooling{{3, 3}, {2, 2}, {1, 1}} : MaxPooling{}),
      in_place_of_relu());
  if (imagenet) stem_->push_back(Identity());  // in the place of the pooling
  stages_ = Sequential();
  int64_t in = 64;
  for (std::size_t stage = 0; stage < options.depths.size(); ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int64_t block = 0; block < options.depths[stage]; ++block) {
      stages_->push_back(Block(options.block, in, width, stage > 0 && block == 0 ? 2 : 1));
      in = options.block == ResNetBlock::basic ? width : 4 * width;
    }
  }
  register_module("stem", stem_);
  register_module("stages", stages_);
  register_module("classifier", classifier_);
}

at::Tensor ResNetImpl::through_stages(at::Tensor x) {
  if (!options_.recompute) return stages_->forward(x);
  for (const auto& child : stages_->children()) {
    const auto block = std::static_pointer_cast<BlockImpl>(child);
    x = recompute([block](const at::Tensor& t) { return block->forward(t); }, x,
                  {.keep = *options_.recompute});
  }
  return x;
}

at::Tensor ResNetImpl::forward(const at::Tensor& images) {
  // BatchNorm cannot normalise one value by itself.
  if (is_training() && images.size(0) == 1 && std::max(images.size(2), images.size(3)) <= stride_)
    refuse({.where = "models.ResNet",
            .what = "the last stage has one value a channel, and BatchNorm trains on two or more",
            .seen = fmt::format("1 picture of {} x {}", images.size(2), images.size(3)),
            .accepted = fmt::format("2 pictures or more, or above {} x {}", stride_, stride_),
            .advice = "give a greater --batch-size or --image-size"});
  return classifier_->forward(through_stages(stem_->forward(images)).mean({2, 3}));
}

std::string torchvision_name(std::string_view name, const ResNetOptions& options) {
  Parts parts{name};
  const auto module = module_name(parts, options);
  if (!module || parts.left.empty())
    refuse({.where = "models.torchvision_name",
            .what = "ResNet with these options has no tensor of that name",
            .seen = name,
            .accepted = "a name of ResNet's named_parameters() or named_buffers()"});
  return *module + "." + std::string(parts.left);
}

namespace {

ResNetOptions imagenet_resnet50() {
  ResNetOptions options = ResNetOptions::resnet50();
  options.stem = ResNetStem::imagenet;
  options.classes = 1000;
  return options;
}

template <ResNetOptions (*options)()>
ModelInfo resnet_model(std::string name, std::string title) {
  return {.name = std::move(name),
          .title = std::move(title),
          .reads = data::Kind::pictures,
          .make = [](const ModelOptions& o) { return make_for_pictures<ResNet>(o, options()); },
          .torchvision = TorchvisionNames{[](std::string_view own) {
            return torchvision_name(own, options());
          }},
          .recomputes = true};
}

}  // namespace

ModelInfo resnet18_model() {
  return resnet_model<ResNetOptions::resnet18>("resnet18", "ResNet-18 with a 3 x 3 stem");
}

ModelInfo resnet50_model() {
  return resnet_model<ResNetOptions::resnet50>("resnet50", "ResNet-50 with a 3 x 3 stem");
}

ModelInfo resnet50_imagenet_model() {
  ModelInfo info = resnet_model<imagenet_resnet50>(
      "resnet50-imagenet", "ResNet-50 with ImageNet's 7 x 7 stem and 1000 classes");
  info.pictures.reset();
  return info;
}

}  // namespace demi::models

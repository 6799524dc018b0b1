#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/models/resnet.h"
#include "lab/models/vgg.h"

namespace demi::models {
namespace {

/// Lines "conv1.weight 64 3 7 7" of tests/fixtures/torchvision, which its make.py wrote.
std::vector<std::string> torchvisions(const std::string& network) {
  std::ifstream file(source_dir() / "tests/fixtures/torchvision" / (network + ".txt"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string with_shape(std::string line, const at::Tensor& tensor) {
  for (const int64_t extent : tensor.sizes()) line += " " + std::to_string(extent);
  return line;
}

std::string line_of(const std::string& name, const at::Tensor& tensor,
                    const ResNetOptions& options) {
  return with_shape(torchvision_name(name, options), tensor);
}

std::vector<std::string> ours(const ResNetOptions& options) {
  const ResNet network(options);
  std::vector<std::string> lines;
  for (const auto& item : network->named_parameters())
    lines.push_back(line_of(item.key(), item.value(), options));
  for (const auto& item : network->named_buffers())
    lines.push_back(line_of(item.key(), item.value(), options));
  return lines;
}

bool is_buffer(const std::string& line) {
  return line.find(".running_") != std::string::npos ||
         line.find(".num_batches_") != std::string::npos;
}

TEST(TorchvisionNames, AreThoseOfTorchvisionInItsOrderWithItsShapes) {
  for (const std::string network : {"resnet18", "resnet50"}) {
    ResNetOptions options =
        network == "resnet18" ? ResNetOptions::resnet18() : ResNetOptions::resnet50();
    options.stem = ResNetStem::imagenet;
    options.classes = 1000;
    // An optimizer's state goes by the parameters' order; that of C++ has no buffers in between.
    std::vector<std::string> expected = torchvisions(network);
    ASSERT_GT(expected.size(), 100U);
    std::stable_partition(expected.begin(), expected.end(),
                          [](const auto& line) { return !is_buffer(line); });
    EXPECT_EQ(ours(options), expected) << network;
  }
}

// torchvision has three linear layers where VGG19 has one.
TEST(TorchvisionNames, AreThoseOfItsVgg19ButForTheLinearLayers) {
  std::vector<std::string> expected = torchvisions("vgg19_bn"), found;
  std::erase_if(expected, [](const auto& line) { return line.starts_with("classifier."); });
  std::stable_partition(expected.begin(), expected.end(),
                        [](const auto& line) { return !is_buffer(line); });
  const VGG19 network(VGG19Options{.classes = 1000});
  int nameless = 0;
  const auto meet = [&](const auto& item) {
    const std::string name = vgg19_name(item.key());
    if (name.empty()) return void(++nameless);
    found.push_back(with_shape(name, item.value()));
  };
  for (const auto& item : network->named_parameters()) meet(item);
  for (const auto& item : network->named_buffers()) meet(item);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(nameless, 2) << "weight and bias of the linear layer";
}

TEST(TorchvisionNames, OfOtherTensorsThereAreNone) {
  const ResNetOptions options = ResNetOptions::resnet18();
  EXPECT_EQ(torchvision_name("stages.7.shortcut.1.running_mean", options),
            "layer4.1.downsample.1.running_mean")
      << "what that block does not have is up to the network";
  for (const char* name :
       {"", "stem", "stem.0", "classifier", "stem.2.weight", "stem.3.weight", "stem.-1.weight",
        "stem.x.weight", "stages.8.body.0.weight", "stages.-1.body.0.weight",
        "stages.0.body.2.weight", "stages.0.body.6.weight", "stages.0.shortcut.2.weight",
        "stages.0.tail.0.weight", "fc.weight", "stages.0.body", "stages."})
    EXPECT_THROW(torchvision_name(name, options), UsageError) << name;
  EXPECT_EQ(torchvision_name("stages.15.body.7.bias", ResNetOptions::resnet50()),
            "layer4.2.bn3.bias");
  EXPECT_THROW(torchvision_name("stages.16.body.7.bias", ResNetOptions::resnet50()), UsageError);
  EXPECT_THROW(torchvision_name("stages.0.body.9.bias", ResNetOptions::resnet50()), UsageError);
}

}  // namespace
}  // namespace demi::models

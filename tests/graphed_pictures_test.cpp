// Pictures that lie on the device are drawn, cropped, mirrored and normalised in the graph of a
// step, each with the numbers that the plain run has for it. On the device of recorded_graph.h.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "demi/data/prefetch_loader.h"
#include "demi/train/trainer.h"
#include "lab/data/image_loader.h"
#include "tests/graphed_training.h"

namespace {

using namespace graphed_training;  // NOLINT(google-build-using-namespace)
using demi::data::Batch;
using demi::data::ImageLoader;
using demi::data::ImageLoaderOptions;
using demi::data::OrderOptions;

demi::data::ImageSet pictures(int64_t count) {
  return {
      .images =
          (at::arange(count * 2 * 4 * 5) * 37).remainder(251).to(at::kByte).view({count, 2, 4, 5}),
      .labels = at::arange(count).remainder(3),
      .classes = {"a", "b", "c"},
      .name = "numbered"};
}

ImageLoaderOptions options_for(const OrderOptions& order, c10::Device device) {
  return {.order = order,
          .mean = {0.25, 0.5},
          .std = {0.5, 0.125},
          .crop_padding = 2,
          .horizontal_flip = true,
          .device = device};
}

TEST(PicturesInTheGraph, AChoiceGivesTheBatchOfItsPosition) {
  for (const OrderOptions& order :
       {OrderOptions{.batch_size = 8, .shuffle = true, .seed = 4}, OrderOptions{.batch_size = 7},
        OrderOptions{.batch_size = 5, .shuffle = true, .rank = 1, .world_size = 3}}) {
    for (const bool augments : {false, true}) {
      ImageLoaderOptions options = options_for(order, kDevice);
      if (!augments) options.crop_padding = 0, options.horizontal_flip = false;
      const ImageLoader loader(pictures(44), options);
      options.device = c10::kCPU;
      const ImageLoader plain(pictures(44), options);
      for (const int64_t epoch : {1, 0, 3})
        for (int64_t position = loader.batches() - 1; position >= 0; --position) {
          const at::Tensor choice = loader.choice(epoch, position);
          const Batch drawn = loader.chosen(choice), right = plain.batch(epoch, position);
          const Batch there = loader.batch(epoch, position);
          EXPECT_EQ(choice.sizes(), (std::vector<int64_t>{right.target.size(0), augments ? 4 : 1}));
          for (const Batch* one : {&drawn, &there}) {
            EXPECT_TRUE(at::equal(one->input.cpu(), right.input)) << epoch << " " << position;
            EXPECT_TRUE(at::equal(one->target.cpu(), right.target)) << epoch << " " << position;
            EXPECT_EQ(one->input.device(), kDevice);
            EXPECT_EQ(one->input.strides(), right.input.strides());
          }
        }
      EXPECT_FALSE(plain.choice(0, 0).defined());
      EXPECT_THROW(plain.chosen(at::arange(3)), demi::UsageError);
    }
  }
}

struct ConvImpl : torch::nn::Module {
  ConvImpl() { last = register_module("last", torch::nn::Linear(2 * 4 * 5, 3)); }
  at::Tensor forward(const at::Tensor& x) { return last(x.flatten(1)); }
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Conv);

std::vector<double> fit(GraphMode mode, const demi::data::Loader& training,
                        const demi::data::Loader& test, int& calls) {
  second_device::Graphs graphs;
  demi::graph::set_machine_graphs(&graphs);
  EmulatedDevice device(c10::DeviceType::XPU);
  torch::manual_seed(3);
  Conv net;
  net->to(kDevice);
  demi::TrainerOptions options{
      .epochs = 5, .precision = demi::parse_precision("bf16"), .device = kDevice, .graph = mode};
  options.optimizers = {std::shared_ptr<demi::optim::Optimizer>(
      demi::optim::testing::make(KindId::kAdam, net->parameters(), {}, device))};
  calls = 0;
  demi::Trainer trainer(demi::train::Network{net.ptr(),
                                             [net, &calls](const Batch& batch) mutable {
                                               ++calls;
                                               return net->forward(batch.input);
                                             }},
                        options);
  std::vector<double> seen;
  for (const auto& epoch : trainer.fit(training, &test).epochs)
    for (const double one :
         {epoch.loss, *epoch.accuracy, epoch.validation->loss, *epoch.validation->accuracy})
      seen.push_back(one);
  for (const at::Tensor& one : net->parameters())
    seen.push_back(one.detach().cpu().to(at::kDouble).sum().item<double>());
  demi::graph::set_machine_graphs(nullptr);
  return seen;
}

TEST(PicturesInTheGraph, ATrainerTrainsOnTheSamePictures) {
  const OrderOptions order{.batch_size = 8, .shuffle = true, .seed = 4};
  const auto training = std::make_shared<ImageLoader>(pictures(44), options_for(order, kDevice));
  ImageLoaderOptions of_test = options_for({.batch_size = 8}, kDevice);
  of_test.crop_padding = 0, of_test.horizontal_flip = false;
  const ImageLoader test(pictures(20), of_test);
  int plain_calls = 0, graphed_calls = 0, ahead_calls = 0;
  const auto plain = fit(GraphMode::off, *training, test, plain_calls);
  EXPECT_EQ(fit(GraphMode::on, *training, test, graphed_calls), plain);
  EXPECT_EQ(plain_calls, 45);
  EXPECT_LE(graphed_calls, 18);
  const demi::data::PrefetchLoader ahead(training, {.workers = 2, .depth = 3, .device = kDevice});
  EXPECT_EQ(fit(GraphMode::on, ahead, test, ahead_calls), plain);
}

}  // namespace

#include "lab/settings/recipe.h"

#include <gtest/gtest.h>

#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/data/data_sets.h"
#include "lab/models/registry.h"
#include "lab/recipes/machine.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::settings {
namespace {

TEST(Recipe, UnknownNamesAreAnsweredWithTheNearest) {
  try {
    find_recipe("fashion-cn");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean fashion-cnn?"), std::string::npos)
        << error.what();
  }
  Config config = find_recipe("fashion-cnn").config;
  config.model = "resnet-1000";
  EXPECT_THROW(workload::make_network(config, {}, 0, c10::kCPU), UsageError);
}

TEST(Recipe, AModelThatCannotReadTheDataIsNamedWithThoseThatCan) {
  Config config = find_recipe("mlp").config;
  config.data = "imdb";
  try {
    workload::load_workload(config, c10::kCPU);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("the model mlp reads rows, the data imdb are texts"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("for imdb: lstm"), std::string::npos) << error.what();
  }
}

// Each recipe's model reads its data; nothing is read from disk for that.
TEST(Recipe, EveryModelReadsItsData) {
  for (const Recipe& recipe : recipes())
    EXPECT_EQ(models::find_model(recipe.config.model).reads,
              data::data_set(recipe.config.data).kind)
        << recipe.name;
}

// One reading of the data gives loaders of every batch size; synthetic data follow it.
TEST(Recipe, AMakerOfWorkloadsGivesEveryBatchSize) {
  Config config = find_recipe("mlp").config;
  config.in = config.out = 8;
  config.batches = 3;
  config.batch_size = 0;
  const workload::WorkloadMaker workload_of = workload::read_data(resolve(config));
  for (const int64_t size : {4, 7}) {
    const workload::Workload workload = workload_of(size);
    EXPECT_EQ(workload.train->examples(), 3 * size);
    EXPECT_EQ(workload.train->batches(), 3);
  }
  EXPECT_THROW(workload_of(config.batch_size), UsageError) << "auto, which is still to be found";
}

TEST(Recipe, InitialWeightsFollowTheSeedAlone) {
  const Config& config = find_recipe("fashion-cnn").config;
  const train::Network a = workload::make_network(config, {}, 7, c10::kCPU),
                       b = workload::make_network(config, {}, 7, c10::kCPU),
                       c = workload::make_network(config, {}, 8, c10::kCPU);
  const auto pa = a.module->parameters(), pb = b.module->parameters(), pc = c.module->parameters();
  for (std::size_t i = 0; i < pa.size(); ++i) EXPECT_TRUE(torch::equal(pa[i], pb[i])) << i;
  EXPECT_FALSE(torch::equal(pa[0], pc[0]));
  EXPECT_TRUE(pa[3].dim() != 4 || pa[3].is_contiguous(c10::MemoryFormat::ChannelsLast));
}

// nanoGPT's config/train_shakespeare_char.py, whose network has 10,745,088 parameters.
TEST(Recipe, OnAGpuShakespeareIsThatOfNanoGpt) {
  const Recipe& recipe = find_recipe("gpt-shakespeare");
  const Config gpu = config_of(recipe, {.on_gpu = true});
  EXPECT_EQ(gpu.epochs * gpu.eval_every, 5000);
  EXPECT_EQ(gpu.schedule_steps, 5000);
  EXPECT_EQ(gpu.batch_size * gpu.context, 64 * 256);
  EXPECT_EQ(find_setting("dropout")->get(gpu), "0.2");
  const train::Network network = workload::make_network(gpu, {.vocabulary = 65}, 0, c10::kCPU);
  EXPECT_EQ(network.module->parameters().size(), 2U + 6 * 6 + 1);
  int64_t all = 0;
  for (const at::Tensor& p : network.module->parameters()) all += p.numel();
  EXPECT_EQ(all, 10745088);
  EXPECT_EQ(config_of(recipe, {}).context, recipe.config.context);
}

TEST(Recipe, OneCycleRisesToThePeakAndFallsToNearlyNothing) {
  Config recipe = find_recipe("fashion-cnn").config;
  recipe.epochs = 1;
  const auto rule = make_schedule(resolve(recipe), 100);
  EXPECT_NEAR(rule(0, recipe.lr), recipe.lr / 25,
              1e-12);  // Smith and Topin 2018; PyTorch's div_factor
  double peak = 0;
  for (int step = 0; step < 100; ++step) peak = std::max(peak, rule(step, recipe.lr));
  EXPECT_NEAR(peak, recipe.lr, recipe.lr * 0.01);
  EXPECT_LT(rule(99, recipe.lr), recipe.lr * 1e-4);
}

TEST(Machine, DevicesAreNamedOrRefusedWithAReason) {
  EXPECT_EQ(pick_device("cpu"), c10::Device(c10::kCPU));
  EXPECT_NO_THROW(pick_device("auto"));
  EXPECT_THROW(pick_device("gpu"), UsageError);
  EXPECT_THROW(pick_device("cuda:x"), UsageError);
  EXPECT_THROW(pick_device("cuda:999"), DeviceError);
  EXPECT_FALSE(recipes::machine(c10::kCPU).device_name.empty());
}

}  // namespace
}  // namespace demi::settings

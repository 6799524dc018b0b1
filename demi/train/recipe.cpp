#include "demi/train/recipe.h"

#include <array>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/data/image_loader.h"
#include "demi/data/registry.h"
#include "demi/optim/adamw.h"
#include "demi/optim/sgd.h"

namespace demi::train {
namespace {

const std::array<Recipe, 1> kRecipes{{
    {.name = "fashion-cnn",
     .title = "five 3 x 3 convolutions with BatchNorm on the 60,000 pictures of Fashion-MNIST (the "
              "main job)",
     .model = "fashion-cnn",
     .data = "fashion-mnist",
     .epochs = 3,
     .batch_size = 256,
     .optimizer = "adamw",
     .lr = 1e-2,
     .weight_decay = 1e-2,
     .schedule = "one-cycle"},
}};

}  // namespace

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe& find_recipe(std::string_view name) {
  std::vector<std::string> known;
  for (const Recipe& recipe : kRecipes) {
    if (recipe.name == name) return recipe;
    known.push_back(recipe.name);
  }
  throw UsageError({.where = "train.find_recipe",
                    .what = "no such recipe",
                    .seen = name,
                    .advice = did_you_mean(name, known)});
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe,
                                                        const Network& network) {
  const auto parameters = network.module->parameters();
  if (recipe.optimizer == "adamw") {
    return std::make_shared<optim::AdamW>(
        parameters, optim::AdamWOptions(recipe.lr).weight_decay(recipe.weight_decay));
  }
  if (recipe.optimizer == "sgd") {
    return std::make_shared<optim::SGD>(
        parameters,
        optim::SGDOptions(recipe.lr).momentum(recipe.momentum).weight_decay(recipe.weight_decay));
  }
  const std::vector<std::string> known{"adamw", "sgd"};
  throw UsageError({.where = "train.make_optimizer",
                    .what = "no such optimizer",
                    .seen = recipe.optimizer,
                    .advice = did_you_mean(recipe.optimizer, known)});
}

namespace {

optim::lr::OneCycleOptions one_cycle_of(const Recipe& recipe, int64_t total_steps) {
  return {.total_steps = std::max<int64_t>(total_steps, 1), .max_lr = recipe.lr};
}

}  // namespace

optim::lr::Rule make_schedule(const Recipe& recipe, int64_t total_steps) {
  if (recipe.schedule == "one-cycle")
    return optim::lr::one_cycle(one_cycle_of(recipe, total_steps));
  if (recipe.schedule == "constant") return {};
  const std::vector<std::string> known{"one-cycle", "constant"};
  throw UsageError({.where = "train.make_schedule",
                    .what = "no such schedule",
                    .seen = recipe.schedule,
                    .advice = did_you_mean(recipe.schedule, known)});
}

optim::lr::Rule make_momentum_schedule(const Recipe& recipe, int64_t total_steps) {
  if (recipe.schedule != "one-cycle") return {};
  return optim::lr::one_cycle_momentum(one_cycle_of(recipe, total_steps));
}

RecipeData load_data(const Recipe& recipe, const RecipeDataOptions& options) {
  const data::DataSet& known = data::data_set(recipe.data);
  data::ImageSet training = data::load_images(recipe.data, data::Split::train, options.data_dir);
  data::ImageSet testing = data::load_images(recipe.data, data::Split::test, options.data_dir);
  RecipeData result;
  result.shape = {.channels = training.images.size(1),
                  .size = training.images.size(2),
                  .classes = static_cast<int64_t>(training.classes.size())};
  result.classes = training.classes;

  data::ImageLoaderOptions loader{.mean = known.mean, .std = known.std, .device = options.device};
  const int64_t test_limit = options.limit > 0 ? std::max<int64_t>(1, options.limit / 6) : 0;
  loader.order = {.batch_size = recipe.test_batch_size, .limit = test_limit};
  result.test = std::make_shared<data::ImageLoader>(std::move(testing), loader);

  loader.order = {.batch_size = recipe.batch_size,
                  .shuffle = true,
                  .seed = options.seed,
                  .limit = options.limit};
  if (recipe.augment) {
    loader.crop_padding = 4;
    loader.horizontal_flip = true;
  }
  result.train = std::make_shared<data::ImageLoader>(std::move(training), loader);
  return result;
}

}  // namespace demi::train

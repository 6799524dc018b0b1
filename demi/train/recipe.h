#pragma once

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/optim/lr_rule.h"
#include "demi/train/loss.h"
#include "demi/train/network.h"

namespace demi::train {

/// A model, a data set and the published way to train the one on the other. Every value can be
/// overridden.
struct Recipe {
  std::string name;
  std::string title;  // one line for people
  std::string model;  // a name of models()
  std::string data;   // a name of demi::data::data_sets()
  int64_t epochs = 3;
  int64_t batch_size = 256;
  int64_t test_batch_size = 500;
  std::string optimizer;  // adamw, sgd
  double lr = 0;          // the peak where the schedule has one
  double momentum = 0;    // sgd
  double weight_decay = 0;
  std::string schedule;  // one-cycle, constant
  Loss loss = Loss::cross_entropy;
  bool augment = false;  // random crop with 4 pixels of padding, and horizontal flip
};

DEMI_API std::span<const Recipe> recipes();

/// Throws UsageError with the nearest right name.
DEMI_API const Recipe& find_recipe(std::string_view name);

/// What is known of the data, that the model needs.
struct DataShape {
  int64_t channels = 1, size = 28, classes = 10;
};

/// Names of models that take pictures.
DEMI_API std::vector<std::string> model_names();

/// Throws UsageError with the nearest right name for a model that is not among them.
DEMI_API void require_model(std::string_view model);

/// A new network on `device` with channels_last weights. Its initial weights depend on model, shape
/// and seed alone, not on the device. Throws UsageError for an unknown model.
DEMI_API Network make_network(std::string_view model, const DataShape& shape, uint64_t seed,
                              c10::Device device);

/// The recipe's optimizer over all parameters of the network.
DEMI_API std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe,
                                                                 const Network& network);

/// The recipe's schedule over `total_steps`, or an empty rule.
DEMI_API optim::lr::Rule make_schedule(const Recipe& recipe, int64_t total_steps);
DEMI_API optim::lr::Rule make_momentum_schedule(const Recipe& recipe, int64_t total_steps);

/// Both splits of the recipe's data, ready to be trained on.
struct RecipeData {
  std::shared_ptr<data::Loader> train, test;
  DataShape shape;
  std::vector<std::string> classes;
};

struct RecipeDataOptions {
  std::filesystem::path data_dir;  // empty: looked for where data sets usually lie
  int64_t limit = 0;  // use that many training examples, and a sixth of it for testing; 0: all
  uint64_t seed = 0;  // of order and augmentation
  c10::Device device = c10::kCPU;
};

/// Throws DataError where a file is missing or damaged.
DEMI_API RecipeData load_data(const Recipe& recipe, const RecipeDataOptions& options);

}  // namespace demi::train

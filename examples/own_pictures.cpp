// Pictures of one's own, FOLDER/train/CLASS/name.png and FOLDER/val/CLASS/name.png: threads decode
// them ahead of the step, and demi::Trainer trains a network on them in mixed precision.
//
//     own_pictures [DEVICE [DTYPE [FOLDER]]]
//
// Without FOLDER: examples/pictures, of warm and of cold colours.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "demi/demi.h"
#include "examples/arguments.h"
#include "lab/data/picture_folder.h"
#include "lab/data/picture_loader.h"
#include "lab/models/simple_cnn.h"

int main(int argc, char** argv) {
  const torch::Device device = device_named(argc > 1 ? argv[1] : "cpu");
  const torch::Dtype dtype = dtype_named(argc > 2 ? argv[2] : "bf16");
  const demi::data::PictureFolders folders =
      demi::data::find_picture_folders(argc > 3 ? argv[3] : DEMI_EXAMPLES "/pictures");
  constexpr int64_t kSize = 32;
  // A random window of each picture, in another order in each epoch.
  const auto training = std::make_shared<demi::data::PictureLoader>(
      folders.train, demi::data::PictureLoaderOptions{.order = {.batch_size = 8, .shuffle = true},
                                                      .size = kSize,
                                                      .least_area = 0.5,
                                                      .horizontal_flip = true});
  std::optional<demi::data::PictureLoader> validation;  // which sees the middle
  if (folders.test)
    validation.emplace(*folders.test, demi::data::PictureLoaderOptions{.size = kSize});

  torch::manual_seed(0);
  demi::models::SimpleCNN model(demi::models::SimpleCNNOptions{
      .size = kSize, .classes = static_cast<int64_t>(folders.train.classes.size())});
  model->to(device);
  demi::TrainerOptions options{.epochs = 10, .device = device};
  options.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  options.optimizers = {
      std::make_shared<demi::optim::AdamW>(model->parameters(), demi::optim::AdamWOptions(3e-3))};
  const demi::train::History history =
      demi::Trainer(model, options)
          .fit(demi::data::PrefetchLoader(training, {.workers = 2, .device = device}),
               validation ? &*validation : nullptr);
  std::printf("%zu pictures of %zu classes, loss %.3f\n", folders.train.files.size(),
              folders.train.classes.size(), history.epochs.back().loss);
  if (!folders.test) return EXIT_SUCCESS;
  const double accuracy = *history.epochs.back().validation->accuracy;
  std::printf("val_accuracy %.3f\n", accuracy);
  return argc > 3 || accuracy > 0.9 ? EXIT_SUCCESS : EXIT_FAILURE;
}

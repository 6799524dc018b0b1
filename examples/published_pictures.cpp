// A published data set by its name, kept on the device as bytes, augmented there batch by batch,
// and trained on in mixed precision. `demi data get fashion-mnist` fetches it, or
// demi::data::get_data_set; where it is not, pictures that are made up stand in for it.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"
#include "lab/data/data_sets.h"
#include "lab/data/image_loader.h"
#include "lab/data/registry.h"
#include "lab/models/fashion_cnn.h"

namespace {

using demi::data::ImageSet;
using demi::data::Split;

// Noise, and bright stripes whose distance and direction are the class.
ImageSet made_up(int64_t count) {
  ImageSet set{.images = torch::randint(100, {count, 1, 28, 28}).to(torch::kByte),
               .labels = torch::randint(10, {count}),
               .classes = demi::data::data_set("fashion-mnist").classes,
               .name = "made up"};
  for (int64_t i = 0; i < count; ++i) {
    const auto label = set.labels[i].item<int64_t>();
    const torch::Tensor picture = set.images[i][0];
    (label < 5 ? picture : picture.t()).slice(0, 0, 28, 2 + label % 5).fill_(255);
  }
  return set;
}

ImageSet read(Split split) {
  try {
    return demi::data::load_images("fashion-mnist", split);
  } catch (const demi::DataError&) {
    return made_up(split == Split::train ? 2000 : 500);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(0);
  const demi::data::DataSet& about = demi::data::data_set("fashion-mnist");
  demi::data::ImageLoaderOptions images{.mean = about.mean, .std = about.std, .device = device};
  images.order = {.batch_size = 250, .limit = 500};  // evenly spaced over the set
  const demi::data::ImageLoader validation(read(Split::test), images);
  images.order = {.batch_size = 50, .shuffle = true, .limit = 2000};
  images.crop_padding = 2;
  const demi::data::ImageLoader training(read(Split::train), images);

  demi::models::FashionCNN model;
  model->to(device);
  demi::TrainerOptions options{.epochs = 4, .device = device};
  options.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  options.optimizers = {
      std::make_shared<demi::optim::AdamW>(model->parameters(), demi::optim::AdamWOptions(3e-3))};
  const demi::train::History history = demi::Trainer(model, options).fit(training, &validation);
  const double accuracy = *history.epochs.back().validation->accuracy;
  std::printf("%s: loss %.3f, val_accuracy %.3f\n", training.set().name.c_str(),
              history.epochs.back().loss, accuracy);
  return accuracy > 0.5 ? EXIT_SUCCESS : EXIT_FAILURE;
}

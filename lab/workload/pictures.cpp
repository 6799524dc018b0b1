#include "lab/workload/pictures.h"

#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/data/image_loader.h"
#include "lab/data/picture_loader.h"
#include "lab/models/seeded.h"
#include "lab/workload/model_data.h"
#include "lab/workload/within_memory.h"

namespace demi::workload {
namespace {

// The words of Config::normalize.
constexpr std::string_view kDataSet = "data-set", kHalf = "half", kNone = "none";
const std::vector<double> kHalves{0.5, 0.5, 0.5};

data::ImageSet random_images(const settings::Config& config) {
  const models::Seeded seeded(static_cast<uint64_t>(config.seed));
  const int64_t count = config.batch_size * config.ranks * synthetic_batches(config);
  data::ImageSet set{
      .images = at::randint(0, 256, {count, 3, config.image_size, config.image_size}, at::kByte),
      .labels = at::randint(0, config.classes, {count}, at::kLong),
      .name = "synthetic-images"};
  for (int64_t i = 0; i < config.classes; ++i) set.classes.push_back(std::to_string(i));
  return set;
}

data::ImageLoaderOptions image_options(const settings::Config& config, const Reading& reading) {
  data::ImageLoaderOptions options{.device = reading.device};
  if (reading.model) {
    options.mean = reading.model->input.mean;
    options.std = reading.model->input.std;
    return options;
  }
  if (config.normalize == kHalf) options.mean = options.std = kHalves;
  if (config.normalize != kDataSet) return options;
  options.mean = reading.data->mean;  // random pictures have none
  options.std = reading.data->std;
  return options;
}

void fit_channels(data::ImageLoaderOptions& options, int64_t channels) {
  if (options.mean.empty()) return;
  options.mean.resize(static_cast<std::size_t>(channels), options.mean.back());
  options.std.resize(static_cast<std::size_t>(channels), options.std.back());
}

// The loaders of the two sets, of which one may be missing.
Workload image_loaders(const settings::Config& config, const Reading& reading, DataShape& shape,
                       std::optional<data::ImageSet> training,
                       const std::optional<data::ImageSet>& test) {
  const data::ImageSet& one = training ? *training : *test;
  shape.channels = one.images.size(1);
  shape.size = one.images.size(2);
  shape.classes = static_cast<int64_t>(one.classes.size());
  if (reading.model) require_same_data(*reading.model, one.classes, one.name, shape);
  Workload result;
  result.items = "images";
  result.classes = one.classes;
  data::ImageLoaderOptions options = image_options(config, reading);
  fit_channels(options, shape.channels);
  result.input.mean = options.mean;
  result.input.std = options.std;
  const bool overfit = config.overfit_batches > 0;
  if (overfit) {
    options.order = overfit_order(config, reading);
    result.test = std::make_shared<data::ImageLoader>(*training, options);
  } else if (test) {
    options.order = test_order(config, reading);
    result.test = std::make_shared<data::ImageLoader>(*test, options);
  }
  if (!training) return result;
  options.order = training_order(config, reading);
  options.crop_padding = overfit ? 0 : config.crop_padding;
  options.horizontal_flip = !overfit && config.horizontal_flip;
  result.train = with_workers(std::make_shared<data::ImageLoader>(std::move(*training), options),
                              config, reading.device);
  return result;
}

data::PictureLoaderOptions picture_options(const settings::Config& config, const Reading& reading) {
  data::PictureLoaderOptions options{.size = config.image_size, .device = reading.device};
  if (reading.model) {
    options.size = reading.model->shape.size;
    options.mean = reading.model->input.mean;
    options.std = reading.model->input.std;
    return options;
  }
  if (config.normalize == kHalf) options.mean = options.std = kHalves;
  if (config.normalize == kNone) options.mean = options.std = {};
  return options;
}

Workload without_training_pictures(const settings::Config& config, const Reading& reading,
                                   DataShape& shape,
                                   const std::optional<data::PictureFolder>& pictures) {
  shape = reading.model->shape;
  Workload result;
  result.items = "images";
  result.classes = reading.model->classes;
  data::PictureLoaderOptions options = picture_options(config, reading);
  options.order = test_order(config, reading);
  if (!pictures) return result;
  result.note = data::note_on_others(*pictures);
  add_note(result.note,
           note_on_lost_classes(nullptr, &pictures->labels, result.classes, config, reading));
  result.test = std::make_shared<data::PictureLoader>(*pictures, options);
  return result;
}

}  // namespace

Loaders random_pictures(const Reading& reading) {
  return [reading](const settings::Config& config, DataShape& shape) {
    data::ImageSet made =
        within_memory("the pictures",
                      fmt::format("--image-size {} --batch-size {} --batches {}", config.image_size,
                                  config.batch_size, config.batches),
                      [&] { return random_images(config); });
    return image_loaders(config, reading, shape, std::move(made), std::nullopt);
  };
}

Loaders read_images(const settings::Config& read, const Reading& reading) {
  std::optional<data::ImageSet> training, test;
  if (!reading.test_alone)
    training = data::load_images(read.data, data::Split::train, read.data_dir);
  if (read.overfit_batches == 0)
    test = data::load_images(read.data, data::Split::test, read.data_dir);
  return [reading, training = std::move(training), test = std::move(test)](
             const settings::Config& config, DataShape& shape) {
    Workload result = image_loaders(config, reading, shape, training, test);
    if (training) result.labels = checksum_of(training->labels);
    result.note =
        note_on_lost_classes(training ? &training->labels : nullptr, test ? &test->labels : nullptr,
                             result.classes, config, reading);
    return result;
  };
}

Loaders list_pictures(const settings::Config& listed, const Reading& reading) {
  if (reading.test_alone)
    return [reading, pictures = data::find_test_pictures(listed.data_dir, reading.model->classes)](
               const settings::Config& config, DataShape& shape) {
      return without_training_pictures(config, reading, shape, pictures);
    };
  return [reading, folders = data::find_picture_folders(listed.data_dir)](
             const settings::Config& config, DataShape& shape) {
    const data::PictureLoaderOptions made = picture_options(config, reading);
    shape = {.channels = 3,
             .size = made.size,
             .classes = static_cast<int64_t>(folders.train.classes.size())};
    if (reading.model)
      require_same_data(*reading.model, folders.train.classes, folders.train.name, shape);
    Workload result;
    result.items = "images";
    result.note = data::note_on_others(folders.train);
    if (folders.test) add_note(result.note, data::note_on_others(*folders.test));
    result.classes = folders.train.classes;
    result.labels = checksum_of(folders.train.labels);
    add_note(result.note, note_on_lost_classes(&folders.train.labels,
                                               folders.test ? &folders.test->labels : nullptr,
                                               result.classes, config, reading));
    data::PictureLoaderOptions options = made;
    result.input.from_photographs = true;
    result.input.mean = options.mean;
    result.input.std = options.std;
    const bool overfit = config.overfit_batches > 0;
    if (overfit) {
      options.order = overfit_order(config, reading);
      result.test = std::make_shared<data::PictureLoader>(folders.train, options);
    } else if (folders.test) {
      options.order = test_order(config, reading);
      result.test = std::make_shared<data::PictureLoader>(*folders.test, options);
    }
    options.order = training_order(config, reading);
    options.least_area = overfit ? 1 : config.crop_area;
    options.horizontal_flip = !overfit && config.horizontal_flip;
    result.train = with_workers(std::make_shared<data::PictureLoader>(folders.train, options),
                                config, reading.device);
    return result;
  };
}

ModelData data_of_settings(const settings::Config& config) {
  const data::DataSet& set = data::data_set(config.data);
  const Reading reading{&set, c10::kCPU, {}};
  ModelData model;
  model.input.kind = set.kind;
  model.input.from_photographs = set.layout == data::Layout::picture_folder;
  if (model.input.from_photographs) {
    const data::PictureLoaderOptions options = picture_options(config, reading);
    model.shape = {.channels = 3, .size = options.size};
    model.input.mean = options.mean;
    model.input.std = options.std;
    return model;
  }
  const bool is_mnist = set.layout == data::Layout::mnist;
  const bool is_made = set.layout == data::Layout::synthetic;
  model.shape = {.channels = is_mnist ? 1 : 3,
                 .size = is_made    ? config.image_size
                         : is_mnist ? 28
                                    : 32};
  data::ImageLoaderOptions options = image_options(config, reading);
  fit_channels(options, model.shape.channels);
  model.input.mean = options.mean;
  model.input.std = options.std;
  return model;
}

}  // namespace demi::workload

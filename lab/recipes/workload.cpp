#include "lab/recipes/workload.h"

#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/data/prefetch_loader.h"
#include "demi/data/tensor_loader.h"
#include "demi/train/metric.h"
#include "lab/data/image_loader.h"
#include "lab/data/picture_loader.h"
#include "lab/data/registry.h"
#include "lab/data/text_loader.h"
#include "lab/models/registry.h"
#include "lab/models/seeded.h"
#include "lab/recipes/within_memory.h"

namespace demi::train {
namespace {

enum class Kind { rows, images, texts };

Kind kind_of_data(const Config& config) {
  if (config.data == "synthetic-rows") return Kind::rows;
  if (config.data == "synthetic-images" || config.data == "folder") return Kind::images;
  if (config.data == "csv") return Kind::texts;
  return data::data_set(config.data).layout == data::Layout::imdb ? Kind::texts : Kind::images;
}

Kind kind_of_model(const std::string& model) {
  if (model == "mlp") return Kind::rows;
  if (model == "lstm") return Kind::texts;
  return Kind::images;
}

void require_fit(const Config& config) {
  // Unknown names are answered as such before anything is said about their fit.
  const auto known = models::models();
  if (std::none_of(known.begin(), known.end(),
                   [&](const auto& m) { return m.name == config.model; }))
    models::make_model(config.model, {}, 0);
  if (kind_of_data(config) == kind_of_model(config.model)) return;
  throw UsageError({.where = "train.load_workload",
                    .what = "the model " + config.model + " cannot read the data " + config.data,
                    .seen = "--model " + config.model + " --data " + config.data,
                    .accepted =
                        "mlp reads synthetic-rows; lstm reads imdb and csv; the other models "
                        "read pictures"});
}

// `examples` of the split, the order that the config asks for.
data::OrderOptions training_order(const Config& config) {
  const int64_t batch = batch_size_of(config);
  data::OrderOptions order{.batch_size = batch,
                           .shuffle = true,
                           .seed = static_cast<uint64_t>(config.seed),
                           .limit = config.limit};
  if (config.overfit_batches > 0) order.limit = config.overfit_batches * batch;
  if (config.dry_run) order.limit = 2 * batch;
  return order;
}

data::OrderOptions test_order(const Config& config) {
  data::OrderOptions order{.batch_size = config.test_batch_size};
  if (config.limit > 0) order.limit = std::max<int64_t>(1, config.limit / 6);
  if (config.dry_run) order.limit = config.test_batch_size;
  return order;
}

// What overfits is tested on what it was trained on.
data::OrderOptions overfit_order(const Config& config) {
  data::OrderOptions order = training_order(config);
  order.shuffle = false;
  return order;
}

std::shared_ptr<const data::Loader> with_workers(std::shared_ptr<const data::Loader> loader,
                                                 const Config& config, c10::Device device) {
  if (config.workers == 0) return loader;
  return std::make_shared<data::PrefetchLoader>(
      std::move(loader),
      data::PrefetchOptions{
          .workers = config.workers, .depth = 2 * config.workers, .device = device});
}

Workload rows(const Config& config, c10::Device device) {
  const int64_t batch = batch_size_of(config);
  const int64_t batches = config.dry_run ? 2 : config.batches;
  const auto made =
      within_memory("the rows",
                    fmt::format("--in {} --out {} --batch-size {} --batches {}", config.in,
                                config.out, batch, batches),
                    [&] {
                      return data::synthetic_rows(batch * batches, config.in, config.out,
                                                  static_cast<uint64_t>(config.seed));
                    });
  Workload result;
  result.items = "rows";
  result.train = std::make_shared<data::TensorLoader>(made.input.to(device), made.target.to(device),
                                                      data::OrderOptions{.batch_size = batch});
  return result;
}

data::ImageSet random_images(const Config& config) {
  const models::Seeded seeded(static_cast<uint64_t>(config.seed));
  const int64_t count = batch_size_of(config) * (config.dry_run ? 2 : config.batches);
  data::ImageSet set{
      .images = at::randint(0, 256, {count, 3, config.image_size, config.image_size}, at::kByte),
      .labels = at::randint(0, config.classes, {count}, at::kLong),
      .name = "synthetic-images"};
  for (int64_t i = 0; i < config.classes; ++i) set.classes.push_back(std::to_string(i));
  return set;
}

data::ImageLoaderOptions image_options(const Config& config, c10::Device device) {
  data::ImageLoaderOptions options{.device = device};
  if (config.normalize == "half") {
    options.mean = options.std = {0.5, 0.5, 0.5};
  } else if (config.normalize == "data-set" && config.data != "synthetic-images") {
    const data::DataSet& known = data::data_set(config.data);
    options.mean = known.mean;
    options.std = known.std;
  }
  return options;
}

void fit_channels(data::ImageLoaderOptions& options, int64_t channels) {
  if (options.mean.empty()) return;
  options.mean.resize(static_cast<std::size_t>(channels), options.mean.back());
  options.std.resize(static_cast<std::size_t>(channels), options.std.back());
}

Workload images(const Config& config, c10::Device device, DataShape& shape) {
  const bool synthetic = config.data == "synthetic-images";
  data::ImageSet training =
      synthetic ? within_memory("the pictures",
                                fmt::format("--image-size {} --batch-size {} --batches {}",
                                            config.image_size, config.batch_size, config.batches),
                                [&] { return random_images(config); })
                : data::load_images(config.data, data::Split::train, config.data_dir);
  shape.channels = training.images.size(1);
  shape.size = training.images.size(2);
  shape.classes = static_cast<int64_t>(training.classes.size());
  Workload result;
  result.items = "images";
  result.classes = training.classes;

  data::ImageLoaderOptions options = image_options(config, device);
  fit_channels(options, shape.channels);
  const bool overfit = config.overfit_batches > 0;
  if (overfit) {
    options.order = overfit_order(config);
    result.test = std::make_shared<data::ImageLoader>(training, options);
  } else if (!synthetic) {
    options.order = test_order(config);
    result.test = std::make_shared<data::ImageLoader>(
        data::load_images(config.data, data::Split::test, config.data_dir), options);
  }
  options.order = training_order(config);
  options.crop_padding = overfit ? 0 : config.crop_padding;
  options.horizontal_flip = !overfit && config.horizontal_flip;
  result.train = with_workers(std::make_shared<data::ImageLoader>(std::move(training), options),
                              config, device);
  return result;
}

data::PictureLoaderOptions picture_options(const Config& config, c10::Device device) {
  data::PictureLoaderOptions options{.size = config.image_size, .device = device};
  if (config.normalize == "half") options.mean = options.std = {0.5, 0.5, 0.5};
  if (config.normalize == "none") options.mean = options.std = {};
  return options;
}

// Read and decoded when they are asked for, by the workers where there are some.
Workload pictures(const Config& config, c10::Device device, DataShape& shape) {
  data::PictureFolders folders = data::find_picture_folders(config.data_dir);
  shape = {.channels = 3,
           .size = config.image_size,
           .classes = static_cast<int64_t>(folders.train.classes.size())};
  Workload result;
  result.items = "images";
  result.classes = folders.train.classes;
  data::PictureLoaderOptions options = picture_options(config, device);
  const bool overfit = config.overfit_batches > 0;
  if (overfit) {
    options.order = overfit_order(config);
    result.test = std::make_shared<data::PictureLoader>(folders.train, options);
  } else if (folders.test) {
    options.order = test_order(config);
    result.test = std::make_shared<data::PictureLoader>(std::move(*folders.test), options);
  }
  options.order = training_order(config);
  options.least_area = overfit ? 1 : config.crop_area;
  options.horizontal_flip = !overfit && config.horizontal_flip;
  result.train = with_workers(
      std::make_shared<data::PictureLoader>(std::move(folders.train), options), config, device);
  return result;
}

Workload texts(const Config& config, c10::Device device, DataShape& shape) {
  data::TextCorpus corpus = config.data == "csv"
                                ? data::load_text_files(config.train_file, config.test_file)
                                : data::load_texts(config.data, config.data_dir);
  shape.classes = static_cast<int64_t>(corpus.classes.size());
  shape.vocabulary = corpus.vocabulary->size();
  if (config.vocabulary_size > 0)
    shape.vocabulary = std::min(shape.vocabulary, config.vocabulary_size);
  Workload result;
  result.items = "texts";
  result.classes = corpus.classes;
  result.note = corpus.note;

  data::TextLoaderOptions options{.max_length = config.max_length,
                                  .vocabulary_size = config.vocabulary_size};
  const bool overfit = config.overfit_batches > 0;
  options.order = overfit ? overfit_order(config) : test_order(config);
  result.test = std::make_shared<data::TextLoader>(overfit ? corpus.train : corpus.test,
                                                   shape.classes, options);
  options.order = training_order(config);
  result.train = with_workers(
      std::make_shared<data::TextLoader>(std::move(corpus.train), shape.classes, options), config,
      device);
  return result;
}

void require_loss(const Config& config, std::size_t classes) {
  const auto refuse = [&](std::string_view accepted) {
    throw UsageError({.where = "train.load_workload",
                      .what = "the loss does not fit the data " + config.data,
                      .seen = config.loss,
                      .accepted = accepted});
  };
  if (classes == 0 && config.loss != "mse") refuse("mse");
  if (classes == 2 && config.model == "lstm" && config.loss != "bce")
    refuse("bce: there are two classes");
  if (classes > 2 && config.loss != "cross-entropy") refuse("cross-entropy");
}

// Convolution weights in the layout of the pictures; LibTorch's modules have no call for it.
void to_channels_last(torch::nn::Module& module) {
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(c10::MemoryFormat::ChannelsLast));
  }
}

}  // namespace

Network make_network(const Config& config, const DataShape& shape, uint64_t seed,
                     c10::Device device) {
  const models::ModelOptions options{.channels = shape.channels,
                                     .size = shape.size,
                                     .classes = shape.classes,
                                     .in = config.in,
                                     .out = config.out,
                                     .layers = config.layers,
                                     .vocabulary = shape.vocabulary,
                                     .embedding = config.embedding,
                                     .hidden = config.hidden,
                                     .pool = models::parse_pool(config.pool),
                                     .bidirectional = config.bidirectional};
  const models::Model model = within_memory(
      "the model " + config.model,
      fmt::format("--in {} --out {} --layers {} --embedding {} --hidden {}, {} classes", config.in,
                  config.out, config.layers, config.embedding, config.hidden, shape.classes),
      [&] { return models::make_model(config.model, options, seed); });
  model.module->to(device);
  to_channels_last(*model.module);
  return {.module = model.module, .forward = [forward = model.forward](const data::Batch& batch) {
            return forward(batch.input, batch.lengths);
          }};
}

Workload load_workload(const Config& config, c10::Device device) {
  check(config);
  require_fit(config);
  DataShape shape;
  Workload result;
  switch (kind_of_data(config)) {
    case Kind::rows:
      result = rows(config, device);
      break;
    case Kind::images:
      result =
          config.data == "folder" ? pictures(config, device, shape) : images(config, device, shape);
      break;
    case Kind::texts:
      result = texts(config, device, shape);
      break;
  }
  require_loss(config, result.classes.size());
  top_k_of(config.top_k, static_cast<int64_t>(result.classes.size()));  // refused before training
  result.make_network = [config, shape, device](uint64_t seed) {
    return make_network(config, shape, seed, device);
  };
  return result;
}

}  // namespace demi::train

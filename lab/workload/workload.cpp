#include "lab/workload/workload.h"

#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/data/prefetch_loader.h"
#include "demi/data/tensor_loader.h"
#include "demi/train/metric.h"
#include "lab/data/image_loader.h"
#include "lab/data/picture_loader.h"
#include "lab/data/registry.h"
#include "lab/data/text_loader.h"
#include "lab/data/token_set.h"
#include "lab/data/token_windows.h"
#include "lab/models/imported.h"
#include "lab/models/registry.h"
#include "lab/models/seeded.h"
#include "lab/workload/imported_fit.h"
#include "lab/workload/imported_table.h"
#include "lab/workload/model_data.h"
#include "lab/workload/network_place.h"
#include "lab/workload/within_memory.h"

namespace demi::workload {
namespace {

// The words of Config::normalize.
constexpr std::string_view kDataSet = "data-set", kHalf = "half", kNone = "none";
const std::vector<double> kHalves{0.5, 0.5, 0.5};

// Recipes name their data; a network from Python is trained on what is named.
[[noreturn]] void refuse_without_data(const models::ModelInfo& model) {
  std::string fitting;
  for (const data::DataSet& set : data::data_sets())
    if (models::reads(model, set.kind)) fitting += (fitting.empty() ? "" : ", ") + set.name;
  throw UsageError({.where = "workload.read_data",
                    .what = "which data?",
                    .seen = "no --data",
                    .accepted = "for this model: " + fitting,
                    .advice = "`demi data list` says where they are; --data-dir, --train-file and "
                              "--test-file name yours"});
}

void require_fit(const settings::Resolved& run) {
  // An empty name is refused.
  const models::ModelInfo& model = run.model ? *run.model : models::find_model(run.config.model);
  if (run.config.data.empty()) refuse_without_data(model);
  const data::DataSet& set = run.data ? *run.data : data::data_set(run.config.data);
  if (models::reads(model, set.kind)) return;
  std::string fitting;
  for (const models::ModelInfo& other : models::models())
    if (other.reads == set.kind) fitting += (fitting.empty() ? "" : ", ") + other.name;
  throw UsageError({.where = "workload.read_data",
                    .what = fmt::format("the model {} reads {}, the data {} are {}", model.name,
                                        name_of(model.reads), set.name, name_of(set.kind)),
                    .seen = "--model " + model.name + " --data " + set.name,
                    .accepted = fmt::format("for {}: {}", set.name, fitting)});
}

// What is read, and where batches go.
struct Place {
  const data::DataSet* data;
  c10::Device device;
  RankPart part;
  std::shared_ptr<const ModelData> model = nullptr;  // of a saved one; null: the data decide
  bool test_alone = false;                           // of a saved one: nothing is trained
};

// Two steps.
int64_t dry_run_batches(const settings::Config& config) {
  return 2 * settings::batches_of_step(config);
}

int64_t synthetic_batches(const settings::Config& config) {
  return config.dry_run ? dry_run_batches(config) : config.batches;
}

// `examples` of the split, the order that the config asks for.
data::OrderOptions training_order(const settings::Config& config, const Place& place) {
  const int64_t batch = config.batch_size;
  data::OrderOptions order{.batch_size = batch,
                           .shuffle = true,
                           .seed = static_cast<uint64_t>(config.seed),
                           .limit = config.limit,
                           .rank = place.part.rank,
                           .world_size = place.part.ranks};
  if (config.overfit_batches > 0) order.limit = config.overfit_batches * batch * config.ranks;
  if (config.dry_run) order.limit = dry_run_batches(config) * batch * config.ranks;
  return order;
}

data::OrderOptions test_order(const settings::Config& config, const Place& place) {
  data::OrderOptions order{.batch_size = config.test_batch_size,
                           .rank = place.part.rank,
                           .world_size = place.part.ranks,
                           .keep_all = true};
  if (config.limit > 0) order.limit = std::max<int64_t>(1, config.limit / 6);
  if (config.test_limit > 0) order.limit = config.test_limit;
  if (config.dry_run) order.limit = config.test_batch_size;
  return order;
}

// A run that overfits is tested on its training batches.
data::OrderOptions overfit_order(const settings::Config& config, const Place& place) {
  data::OrderOptions order = training_order(config, place);
  order.shuffle = false;
  if (config.dry_run) order.limit = order.batch_size * config.ranks;  // one test batch
  return order;
}

std::shared_ptr<const data::Loader> with_workers(std::shared_ptr<const data::Loader> loader,
                                                 const settings::Config& config,
                                                 c10::Device device) {
  if (config.workers == 0) return loader;
  return std::make_shared<data::PrefetchLoader>(
      std::move(loader),
      data::PrefetchOptions{
          .workers = config.workers, .depth = 2 * config.workers, .device = device});
}

// What a reader gives: the workload of a config without its network, for which it fills in `shape`.
using Loaders = std::function<Workload(const settings::Config& config, DataShape& shape)>;

// Normally distributed rows, and the sum of their features with normally distributed weights, so
// that the target has a variance of 1.
data::SyntheticRows linear_rows(int64_t examples, int64_t in, int64_t out, uint64_t seed) {
  data::SyntheticRows rows = data::synthetic_rows(examples, in, 0, seed);
  const at::Tensor weights = data::synthetic_rows(in, out, 0, seed + 1).input;
  rows.target = rows.input.matmul(weights) / std::sqrt(static_cast<double>(in));
  return rows;
}

Loaders random_rows(const Place& place, bool linear) {
  return [place, make = linear ? linear_rows : data::synthetic_rows](const settings::Config& config,
                                                                     DataShape&) {
    const int64_t batch = config.batch_size;
    const int64_t batches = synthetic_batches(config);
    const auto made = within_memory("the rows",
                                    fmt::format("--in {} --out {} --batch-size {} --batches {}",
                                                config.in, config.out, batch, batches),
                                    [&] {
                                      return make(batch * config.ranks * batches, config.in,
                                                  config.out, static_cast<uint64_t>(config.seed));
                                    });
    Workload result;
    result.items = "rows";
    // In place: a second copy would be the greatest tensor of the run.
    const at::Tensor input = made.input.mul_(config.input_scale).to(place.device),
                     target = made.target.to(place.device);
    if (config.overfit_batches > 0)
      result.test =
          std::make_shared<data::TensorLoader>(input, target, overfit_order(config, place));
    data::OrderOptions order = training_order(config, place);
    order.shuffle = false;  // they are random as they are
    result.train = with_workers(std::make_shared<data::TensorLoader>(input, target, order), config,
                                place.device);
    return result;
  };
}

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

data::ImageLoaderOptions image_options(const settings::Config& config, const Place& place) {
  data::ImageLoaderOptions options{.device = place.device};
  if (place.model) {
    options.mean = place.model->input.mean;
    options.std = place.model->input.std;
    return options;
  }
  if (config.normalize == kHalf) options.mean = options.std = kHalves;
  if (config.normalize != kDataSet) return options;
  options.mean = place.data->mean;  // random pictures have none
  options.std = place.data->std;
  return options;
}

void fit_channels(data::ImageLoaderOptions& options, int64_t channels) {
  if (options.mean.empty()) return;
  options.mean.resize(static_cast<std::size_t>(channels), options.mean.back());
  options.std.resize(static_cast<std::size_t>(channels), options.std.back());
}

std::uint32_t checksum_of(const at::Tensor& labels) {
  const at::Tensor numbers = labels.to(at::kLong).contiguous();
  return crc32c(numbers.const_data_ptr(), numbers.nbytes());
}

// One of the two may be missing.
Workload image_loaders(const settings::Config& config, const Place& place, DataShape& shape,
                       std::optional<data::ImageSet> training,
                       const std::optional<data::ImageSet>& test) {
  const data::ImageSet& one = training ? *training : *test;
  shape.channels = one.images.size(1);
  shape.size = one.images.size(2);
  shape.classes = static_cast<int64_t>(one.classes.size());
  if (place.model) require_same_data(*place.model, one.classes, one.name, shape);
  Workload result;
  result.items = "images";
  result.classes = one.classes;
  data::ImageLoaderOptions options = image_options(config, place);
  fit_channels(options, shape.channels);
  result.input.mean = options.mean;
  result.input.std = options.std;
  const bool overfit = config.overfit_batches > 0;
  if (overfit) {
    options.order = overfit_order(config, place);
    result.test = std::make_shared<data::ImageLoader>(*training, options);
  } else if (test) {
    options.order = test_order(config, place);
    result.test = std::make_shared<data::ImageLoader>(*test, options);
  }
  if (!training) return result;
  options.order = training_order(config, place);
  options.crop_padding = overfit ? 0 : config.crop_padding;
  options.horizontal_flip = !overfit && config.horizontal_flip;
  result.train = with_workers(std::make_shared<data::ImageLoader>(std::move(*training), options),
                              config, place.device);
  return result;
}

Loaders random_pictures(const Place& place) {
  return [place](const settings::Config& config, DataShape& shape) {
    data::ImageSet made =
        within_memory("the pictures",
                      fmt::format("--image-size {} --batch-size {} --batches {}", config.image_size,
                                  config.batch_size, config.batches),
                      [&] { return random_images(config); });
    return image_loaders(config, place, shape, std::move(made), std::nullopt);
  };
}

Loaders read_images(const settings::Config& read, const Place& place) {
  std::optional<data::ImageSet> training, test;
  if (!place.test_alone) training = data::load_images(read.data, data::Split::train, read.data_dir);
  if (read.overfit_batches == 0)
    test = data::load_images(read.data, data::Split::test, read.data_dir);
  return [place, training = std::move(training), test = std::move(test)](
             const settings::Config& config, DataShape& shape) {
    Workload result = image_loaders(config, place, shape, training, test);
    if (training) result.labels = checksum_of(training->labels);
    return result;
  };
}

data::PictureLoaderOptions picture_options(const settings::Config& config, const Place& place) {
  data::PictureLoaderOptions options{.size = config.image_size, .device = place.device};
  if (place.model) {
    options.size = place.model->shape.size;
    options.mean = place.model->input.mean;
    options.std = place.model->input.std;
    return options;
  }
  if (config.normalize == kHalf) options.mean = options.std = kHalves;
  if (config.normalize == kNone) options.mean = options.std = {};
  return options;
}

Workload without_training_pictures(const settings::Config& config, const Place& place,
                                   DataShape& shape,
                                   const std::optional<data::PictureFolder>& pictures) {
  shape = place.model->shape;
  Workload result;
  result.items = "images";
  result.classes = place.model->classes;
  data::PictureLoaderOptions options = picture_options(config, place);
  options.order = test_order(config, place);
  if (pictures) result.test = std::make_shared<data::PictureLoader>(*pictures, options);
  return result;
}

// The pictures themselves are read and decoded when they are asked for, by the workers if there are
// any.
Loaders list_pictures(const settings::Config& listed, const Place& place) {
  if (place.test_alone)
    return [place, pictures = data::find_test_pictures(listed.data_dir, place.model->classes)](
               const settings::Config& config, DataShape& shape) {
      return without_training_pictures(config, place, shape, pictures);
    };
  return [place, folders = data::find_picture_folders(listed.data_dir)](
             const settings::Config& config, DataShape& shape) {
    const data::PictureLoaderOptions made = picture_options(config, place);
    shape = {.channels = 3,
             .size = made.size,
             .classes = static_cast<int64_t>(folders.train.classes.size())};
    if (place.model)
      require_same_data(*place.model, folders.train.classes, folders.train.name, shape);
    Workload result;
    result.items = "images";
    result.note = data::note_on_others(folders.train);
    result.classes = folders.train.classes;
    result.labels = checksum_of(folders.train.labels);
    data::PictureLoaderOptions options = made;
    result.input.from_photographs = true;
    result.input.mean = options.mean;
    result.input.std = options.std;
    const bool overfit = config.overfit_batches > 0;
    if (overfit) {
      options.order = overfit_order(config, place);
      result.test = std::make_shared<data::PictureLoader>(folders.train, options);
    } else if (folders.test) {
      options.order = test_order(config, place);
      result.test = std::make_shared<data::PictureLoader>(*folders.test, options);
    }
    options.order = training_order(config, place);
    options.least_area = overfit ? 1 : config.crop_area;
    options.horizontal_flip = !overfit && config.horizontal_flip;
    result.train = with_workers(std::make_shared<data::PictureLoader>(folders.train, options),
                                config, place.device);
    return result;
  };
}

// What a run on the texts of a corpus needs, without their loaders.
Workload text_workload(const data::TextCorpus& corpus, const settings::Config& config,
                       DataShape& shape) {
  shape.classes = static_cast<int64_t>(corpus.classes.size());
  shape.vocabulary = corpus.vocabulary->size();
  if (config.vocabulary_size > 0)
    shape.vocabulary = std::min(shape.vocabulary, config.vocabulary_size);
  Workload result;
  result.items = "texts";
  result.classes = corpus.classes;
  result.note = corpus.note;
  result.vocabulary = corpus.vocabulary;
  result.input.max_length = config.max_length;
  return result;
}

Loaders text_loaders(data::TextCorpus read, const Place& place) {
  if (place.model) number_anew(*place.model, read, place.data->name);
  return [place, corpus = std::move(read)](settings::Config config, DataShape& shape) {
    if (place.model) config.max_length = place.model->input.max_length;
    Workload result = text_workload(corpus, config, shape);
    if (place.model) {
      require_same_words(*place.model, shape.vocabulary);
      result.unknown_train = data::unknown_share(corpus.train);
      result.unknown_test = data::unknown_share(corpus.test);
    }
    result.labels = checksum_of(corpus.train.labels);
    data::TextLoaderOptions options{.max_length = config.max_length,
                                    .vocabulary_size = config.vocabulary_size};
    const bool overfit = config.overfit_batches > 0;
    options.order = overfit ? overfit_order(config, place) : test_order(config, place);
    result.test = std::make_shared<data::TextLoader>(overfit ? corpus.train : corpus.test,
                                                     shape.classes, options);
    options.order = training_order(config, place);
    result.train =
        with_workers(std::make_shared<data::TextLoader>(corpus.train, shape.classes, options),
                     config, place.device);
    return result;
  };
}

data::RandomWindowsOptions training_windows(const settings::Config& config, const Place& place) {
  return {.context = config.context,
          .batch_size = config.batch_size,
          .batches = config.dry_run ? dry_run_batches(config)
                                    : config.eval_every * settings::batches_of_step(config),
          .limit = config.limit,
          .seed = static_cast<uint64_t>(config.seed),
          .rank = place.part.rank,
          .world_size = place.part.ranks};
}

void require_windows(const data::TokenSet& tokens, const settings::Config& config) {
  if (tokens.train.size > config.context) return;
  throw DataError(
      {.where = "workload.read_data",
       .what = "too few tokens to train on for one window",
       .seen = fmt::format("{} tokens, --context {}", tokens.train.size, config.context),
       .accepted = fmt::format("{} or more", config.context + 1),
       .advice = "name a longer text, or a smaller --context"});
}

tokens::TokenizerTexts tokenizer_texts(const data::TokenSet& tokens) {
  return tokens.tokenizer ? tokens.tokenizer->texts() : tokens::TokenizerTexts();
}

Loaders token_loaders(const data::TokenSet& tokens, const Place& place) {
  return [place, tokens](const settings::Config& config, DataShape& shape) {
    require_windows(tokens, config);
    Workload result;
    result.tokenizer = tokenizer_texts(tokens);
    if (place.model) require_same_tokens(*place.model, result.tokenizer, tokens.vocabulary);
    shape.vocabulary = tokens.vocabulary;
    result.items = "tokens";
    result.items_of_example = config.context;
    const bool overfit = config.overfit_batches > 0;
    result.test = std::make_shared<data::ConsecutiveWindows>(
        overfit ? tokens.train : tokens.test, config.context,
        overfit ? overfit_order(config, place) : test_order(config, place));
    std::shared_ptr<const data::Loader> train;
    if (overfit)
      train = std::make_shared<data::ConsecutiveWindows>(tokens.train, config.context,
                                                         training_order(config, place));
    else
      train = std::make_shared<data::RandomWindows>(tokens.train, training_windows(config, place));
    result.train = with_workers(std::move(train), config, place.device);
    return result;
  };
}

// A text of its own by the tokenizer of the model's file: the training text is not needed.
Loaders test_tokens(const settings::Config& read, const Place& place,
                    const std::shared_ptr<const tokens::Tokenizer>& tokenizer) {
  const data::TokenSpan test = data::read_test_tokens(read.test_file, *tokenizer);
  return [place, test](const settings::Config& config, DataShape& shape) {
    shape.vocabulary = place.model->shape.vocabulary;
    Workload result;
    result.items = "tokens";
    result.items_of_example = config.context;
    result.tokenizer = place.model->tokenizer;
    result.test =
        std::make_shared<data::ConsecutiveWindows>(test, config.context, test_order(config, place));
    return result;
  };
}

Loaders test_texts(const settings::Config& read, const Place& place) {
  const ModelData& model = *place.model;
  data::TextCorpus corpus{.classes = model.classes, .vocabulary = model.vocabulary};
  corpus.test = place.data->layout == data::Layout::csv
                    ? data::load_test_text_file(read.test_file, model.classes, *model.vocabulary)
                    : data::load_test_texts(read.data, read.data_dir, *model.vocabulary);
  return [place, corpus = std::move(corpus)](settings::Config config, DataShape& shape) {
    config.max_length = place.model->input.max_length;
    Workload result = text_workload(corpus, config, shape);
    require_same_words(*place.model, shape.vocabulary);
    result.unknown_test = data::unknown_share(corpus.test);
    result.test = std::make_shared<data::TextLoader>(
        corpus.test, shape.classes,
        data::TextLoaderOptions{.order = test_order(config, place),
                                .max_length = config.max_length});
    return result;
  };
}

Loaders loaders_of(const settings::Config& config, const Place& place) {
  if (place.test_alone && place.data->kind == data::Kind::texts) return test_texts(config, place);
  if (place.test_alone && place.data->layout == data::Layout::text && !config.test_file.empty())
    if (const auto tokenizer = tokenizer_of_model(*place.model))
      return test_tokens(config, place, tokenizer);
  switch (place.data->layout) {
    case data::Layout::synthetic:
      return place.data->kind == data::Kind::rows
                 ? random_rows(place, /*linear=*/place.data->name == "synthetic-linear")
                 : random_pictures(place);
    case data::Layout::csv:
      return text_loaders(data::load_text_files(config.train_file, config.test_file), place);
    case data::Layout::text:
      return token_loaders(
          place.data->is_published()
              ? data::load_token_text(config.data, config.data_dir, config.tokenizer)
              : data::read_token_texts(config.train_file, config.test_file, config.tokenizer),
          place);
    case data::Layout::tokens:
      return token_loaders(
          data::open_token_sets(config.train_file, config.test_file, config.vocabulary_size),
          place);
    case data::Layout::picture_folder:
      return list_pictures(config, place);
    default:
      return place.data->kind == data::Kind::texts
                 ? text_loaders(data::load_texts(config.data, config.data_dir), place)
                 : read_images(config, place);
  }
}

void require_loss(const settings::Resolved& run, std::size_t classes) {
  const settings::Config& config = run.config;
  const auto refuse = [&](std::string_view accepted) {
    throw UsageError({.where = "workload.read_data",
                      .what = "the loss does not fit the data " + config.data,
                      .seen = config.loss,
                      .accepted = accepted});
  };
  if (run.data->kind == data::Kind::tokens) {
    if (config.loss != "cross-entropy") refuse("cross-entropy");
    return;
  }
  if (classes == 0 && config.loss != "mse") refuse("mse");
  // A network from Python has what its loss says, but the labels of two classes of texts are those
  // of one logit.
  const bool is_free = run.model->is_file && run.data->kind != data::Kind::texts;
  const bool one_logit =
      classes == 2 &&
      (is_free ? config.loss == "bce" : run.model->is_file || run.model->one_logit_for_two_classes);
  if (one_logit && config.loss != "bce") refuse("bce: there are two classes");
  if (classes > 0 && !one_logit && config.loss != "cross-entropy") refuse("cross-entropy");
}

void require_test_set(const settings::Config& config, const Workload& workload) {
  const bool names_best = config.keep_best > 1 || config.best_by != "auto";
  if (names_best && !workload.test)
    throw UsageError({.where = "workload.read_data",
                      .what = "the best is found by test results, and the data " + config.data +
                              " have no test set",
                      .seen = config.keep_best > 1 ? fmt::format("--keep-best {}", config.keep_best)
                                                   : "--best-by " + config.best_by,
                      .advice = "leave it out; --keep-every keeps checkpoints by step or epoch"});
  if (config.early_stopping > 0 && !workload.test)
    throw UsageError({.where = "workload.read_data",
                      .what = "training ends early by test results, and the data " + config.data +
                              " have no test set",
                      .seen = fmt::format("--early-stopping {}", config.early_stopping),
                      .advice = "leave out --early-stopping"});
}

// Convolution weights in the layout of the pictures; LibTorch's modules have no call for it.
void to_channels_last(torch::nn::Module& module) {
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(c10::MemoryFormat::ChannelsLast));
  }
}

}  // namespace

models::ModelOptions model_options(const settings::Config& config, const DataShape& shape) {
  return {.channels = shape.channels,
          .size = shape.size,
          .classes = shape.classes,
          .in = config.in,
          .out = config.out,
          .layers = config.layers,
          .vocabulary = shape.vocabulary,
          .embedding = config.embedding,
          .hidden = config.hidden,
          .pool = models::parse_pool(config.pool),
          .bidirectional = config.bidirectional,
          .context = config.context,
          .heads = config.heads,
          .key_heads = config.key_heads,
          .feed_forward = config.feed_forward,
          .block = config.block,
          .bias = config.bias,
          .dropout = config.dropout,
          .norm_eps = config.norm_eps,
          .rope_theta = config.rope_theta,
          .tied_head = models::parse_tied_head(config.tied_head),
          .recompute = models::parse_recompute(config.recompute),
          .output = config.model_output};
}

train::Network make_network(const settings::Config& config, const DataShape& shape, uint64_t seed,
                            c10::Device device) {
  const models::ModelOptions options = model_options(config, shape);
  train::Network network = within_memory(
      "the model " + config.model,
      fmt::format("--in {} --out {} --depth {} --embedding {} --hidden {}, {} classes", config.in,
                  config.out, config.layers, config.embedding, config.hidden, shape.classes),
      [&] { return models::make_model(config.model, options, seed); });
  network.module->to(device);
  if (!models::find_model(config.model).is_file) to_channels_last(*network.module);
  return network;
}

int64_t top_k_of(const Workload& workload, int64_t asked) {
  if (workload.input.kind != data::Kind::tokens)
    return train::top_k_of(asked, static_cast<int64_t>(workload.classes.size()));
  return asked == 0 ? 0 : train::top_k_of(asked, workload.shape.vocabulary);
}

namespace {

// A network from Python is what its file says: it is tried, and shown.
void look_at_file(const models::ImportedFile& file, const settings::Resolved& run,
                  Workload& workload) {
  const std::vector<std::string> notes = try_network(file, run, workload);
  for (const std::string& note : notes) workload.note += (workload.note.empty() ? "" : "; ") + note;
  workload.about = tables_of(file, notes, run.device);
}

// The loss fits the data, and the data what is asked of them: refused before training.
void require_all(const settings::Resolved& run, const settings::Config& config,
                 const Workload& workload) {
  if (!settings::has_own_loss(run.config)) require_loss(run, workload.classes.size());
  require_test_set(config, workload);
  top_k_of(workload, config.top_k);
}

Workload workload_of(const settings::Resolved& run, const Loaders& loaders, int64_t batch_size) {
  if (batch_size == 0)
    throw UsageError({.where = "workload.read_data",
                      .what = "the batch size is still to be found",
                      .seen = "auto",
                      .advice = "call find_batch_size first"});
  settings::Resolved sized = run;
  sized.config.batch_size = batch_size;
  const settings::Config& config = sized.config;
  DataShape shape;
  Workload result = loaders(config, shape);
  result.shape = shape;
  result.input.kind = run.data->kind;
  if (run.model->training_flop)
    result.flop_of_item = run.model->training_flop(model_options(config, shape));
  if (settings::has_own_loss(config)) result.classes.clear();  // nothing says which output is whose
  require_all(run, config, result);
  result.make_network = [config, shape, device = run.device](uint64_t seed) {
    return make_network(config, shape, seed, device);
  };
  if (run.model->is_file) look_at_file(models::imported_file(config.model), sized, result);
  return result;
}

WorkloadMaker maker_of(const settings::Resolved& run, const Place& place) {
  settings::check(run.config);
  require_fit(run);
  const Loaders loaders = loaders_of(run.config, place);
  return [run, loaders](int64_t batch_size) { return workload_of(run, loaders, batch_size); };
}

}  // namespace

WorkloadMaker read_data(const settings::Resolved& run, RankPart part,
                        std::shared_ptr<const ModelData> model) {
  if (model) {
    require_same_kind(*model, *run.data);
    require_same_network(run.config, model->identity, model->file);
  }
  return maker_of(run, {run.data, run.device, part, std::move(model)});
}

Workload load_test_data(const settings::Resolved& run, std::shared_ptr<const ModelData> model) {
  require_same_kind(*model, *run.data);
  const bool has_texts_or_pictures = run.data->layout != data::Layout::synthetic;
  return maker_of(run, {run.data, run.device, {}, std::move(model), has_texts_or_pictures})(
      std::max<int64_t>(run.config.batch_size, 1));
}

ModelData data_of_settings(const settings::Config& config) {
  const data::DataSet& set = data::data_set(config.data);
  const Place place{&set, c10::kCPU, {}};
  ModelData model;
  model.input.kind = set.kind;
  model.input.from_photographs = set.layout == data::Layout::picture_folder;
  if (model.input.from_photographs) {
    const data::PictureLoaderOptions options = picture_options(config, place);
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
  data::ImageLoaderOptions options = image_options(config, place);
  fit_channels(options, model.shape.channels);
  model.input.mean = options.mean;
  model.input.std = options.std;
  return model;
}

Workload load_workload(const settings::Config& config, c10::Device device) {
  return read_data(settings::resolve(config, device))(config.batch_size);
}

}  // namespace demi::workload

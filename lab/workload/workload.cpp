#include "lab/workload/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "demi/core/error.h"
#include "demi/train/metric.h"
#include "lab/data/registry.h"
#include "lab/data/token_set.h"
#include "lab/models/imported.h"
#include "lab/models/registry.h"
#include "lab/workload/imported_fit.h"
#include "lab/workload/imported_table.h"
#include "lab/workload/memory_format.h"
#include "lab/workload/model_data.h"
#include "lab/workload/network_place.h"
#include "lab/workload/pictures.h"
#include "lab/workload/rows.h"
#include "lab/workload/running_texts.h"
#include "lab/workload/texts.h"
#include "lab/workload/within_memory.h"

namespace demi::workload {
namespace {

// Refuses a network from Python without data: recipes name their data, such a network needs --data.
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

Loaders loaders_of(const settings::Config& config, const Reading& reading) {
  if (reading.test_alone && reading.data->kind == data::Kind::texts)
    return test_texts(config, reading);
  if (reading.test_alone && reading.data->layout == data::Layout::text && !config.test_file.empty())
    if (const auto tokenizer = tokenizer_of_model(*reading.model))
      return test_tokens(config, reading, tokenizer);
  switch (reading.data->layout) {
    case data::Layout::synthetic:
      return reading.data->kind == data::Kind::rows
                 ? random_rows(reading, /*linear=*/reading.data->name == "synthetic-linear")
                 : random_pictures(reading);
    case data::Layout::csv:
      return text_loaders(data::load_text_files(config.train_file, config.test_file), config,
                          reading);
    case data::Layout::text:
      return token_loaders(
          reading.data->is_published()
              ? data::load_token_text(config.data, config.data_dir, config.tokenizer)
              : data::read_token_texts(config.train_file, config.test_file, config.tokenizer),
          reading);
    case data::Layout::tokens:
      return token_loaders(
          data::open_token_sets(config.train_file, config.test_file, config.vocabulary_size),
          reading);
    case data::Layout::picture_folder:
      return list_pictures(config, reading);
    default:
      return reading.data->kind == data::Kind::texts
                 ? text_loaders(data::load_texts(config.data, config.data_dir), config, reading)
                 : read_images(config, reading);
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
  // The loss decides the outputs of a network from Python, except that texts of two classes have
  // the labels of one logit.
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
          .vocabulary = shape.vocabulary,
          .context = config.context,
          .settings = config.model_settings,
          .recompute = models::parse_recompute(config.recompute),
          .output = config.model_output,
          .fusing = models::parse_fusing(config.fuse),
          .channels_last = config.channels_last};
}

namespace {

// "--in 8 --out 4 --depth 3, 10 classes"
std::string sizes_of(const settings::Config& config, const DataShape& shape) {
  const models::ModelInfo& model = models::find_model(config.model);
  std::string text;
  if (model.reads == data::Kind::rows)
    text = fmt::format("--in {} --out {}", config.in, config.out);
  for (const models::ModelSetting& own : model.settings)
    text += (text.empty() ? "--" : " --") + own.setting.name + " " +
            own.setting.get(config.model_settings);
  return text + fmt::format("{}{} classes", text.empty() ? "" : ", ", shape.classes);
}

}  // namespace

train::Network make_network(const settings::Config& config, const DataShape& shape, uint64_t seed,
                            c10::Device device) {
  models::ModelOptions options = model_options(config, shape);
  const bool is_file = models::find_model(config.model).is_file;
  options.channels_last =
      config.channels_last && is_file && why_not_channels_last(config, shape, device).empty();
  train::Network network = within_memory("the model " + config.model, sizes_of(config, shape), [&] {
    return models::make_model(config.model, options, seed);
  });
  network.module->to(device);
  if (!is_file) to_channels_last(*network.module);
  return network;
}

int64_t top_k_of(const Workload& workload, int64_t asked) {
  if (workload.input.kind != data::Kind::tokens)
    return train::top_k_of(asked, static_cast<int64_t>(workload.classes.size()));
  return asked == 0 ? 0 : train::top_k_of(asked, workload.shape.vocabulary);
}

namespace {

// Runs the exported network once, and makes the tables that describe it.
void look_at_file(const models::ImportedFile& file, const settings::Resolved& run,
                  Workload& workload) {
  std::vector<std::string> notes = try_network(file, run, workload);
  if (run.config.channels_last)
    if (const auto why = why_not_channels_last(run.config, workload.shape, run.device);
        !why.empty())
      notes.push_back("not in channels_last, which the graph refuses: " + why);
  for (const std::string& note : notes) add_note(workload.note, note);
  workload.about = tables_of(file, notes, run);
}

// Checks loss, test set and top-k against the data before training.
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
  result.note_on_data = result.note;
  result.shape = shape;
  result.input.kind = run.data->kind;
  if (run.model->training_flop)
    result.flop_of_item = run.model->training_flop(model_options(config, shape));
  // The outputs of a network with a loss of its own have no known classes.
  if (settings::has_own_loss(config)) result.classes.clear();
  require_all(run, config, result);
  result.make_network = [config, shape, device = run.device](uint64_t seed) {
    return make_network(config, shape, seed, device);
  };
  if (run.model->is_file) look_at_file(models::imported_file(config.model), sized, result);
  return result;
}

WorkloadMaker maker_of(const settings::Resolved& run, const Reading& reading) {
  settings::check(run.config);
  require_fit(run);
  const Loaders loaders = loaders_of(run.config, reading);
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

Workload load_workload(const settings::Config& config, c10::Device device) {
  return read_data(settings::resolve(config, device))(config.batch_size);
}

}  // namespace demi::workload

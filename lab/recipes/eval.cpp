#include "lab/recipes/eval.h"

#include <fmt/format.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "demi/train/evaluate.h"
#include "lab/data/data_sets.h"
#include "lab/data/locate.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/machine.h"
#include "lab/settings/config_source.h"
#include "lab/settings/resolved.h"
#include "lab/workload/model_data.h"
#include "lab/workload/model_file.h"
#include "lab/workload/network_place.h"
#include "lab/workload/saved_network.h"
#include "lab/workload/weights_file.h"
#include "lab/workload/workload.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

// A run may have been tested on a part of the test set, or on its training batches.
std::string difference_to_run(const settings::Config& run, const EvalOptions& options) {
  if (run.overfit_batches > 0)
    return "the run was tested on its own training batches (--overfit-batches), this is the test "
           "set";
  const int64_t tested = run.test_limit > 0 ? run.test_limit
                         : run.limit > 0    ? std::max<int64_t>(1, run.limit / 6)
                                            : 0;
  if (tested == options.limit) return "";
  const auto count = [](int64_t limit) {
    return limit == 0 ? std::string("all") : std::to_string(limit);
  };
  return fmt::format("the run was tested on {} examples; --limit {} tests the same", count(tested),
                     tested);
}

bool is_there(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

// A weights file has the base names of its data. The config.json in its run's folder has their
// places.
void find_places(settings::Config& config, const fs::path& weights) {
  const fs::path record = weights.parent_path() / "config.json";
  std::error_code unreadable;
  if (!fs::is_regular_file(weights, unreadable) || !is_there(record)) return;
  const auto take = [](std::string& base, const std::string& place) {
    if (fs::path(place + "/").lexically_normal().parent_path().filename() == base) base = place;
  };
  try {
    for (const settings::Assignment& a : settings::read_config_file(record).values) {
      if (a.name == "data-dir") take(config.data_dir, a.text);
      if (a.name == "train-file") take(config.train_file, a.text);
      if (a.name == "test-file") take(config.test_file, a.text);
    }
  } catch (const UsageError&) {  // NOLINT(bugprone-empty-catch): another program's file
  }
}

bool is_base_name(const std::string& place) {
  return !place.empty() && !fs::path(place).has_parent_path();
}

// Finds a file with that base name in the folder.
bool look_in(const fs::path& folder, std::string& place) {
  const fs::path there = folder / fs::path(place).filename();
  if (place.empty() || !is_there(there)) return false;
  place = there;
  return true;
}

void require_there(const std::string& file, std::string_view what, std::string_view advice) {
  if (file.empty() || is_there(file)) return;
  throw DataError({.where = "recipes.evaluate_saved",
                   .what = fmt::format("{} is not here", what),
                   .seen = file,
                   .accepted = "data that exist",
                   .advice = advice});
}

// Guesses the place of data. A weights file that was moved names its data by base name: a file of
// this name here, or beside the weights, is taken, with a note. config.json is in the folder that a
// run made.
void guess_place(std::string& place, const fs::path& weights, EvalResult& result) {
  std::error_code unreadable;
  const bool is_moved =
      fs::is_regular_file(weights, unreadable) && !is_there(weights.parent_path() / "config.json");
  if (!is_moved || !is_base_name(place)) return;
  const std::string name = place;
  if (!is_there(place) && !look_in(weights.parent_path(), place)) return;
  result.notes.push_back(fmt::format("the file names its data {}, and {} was taken for that", name,
                                     fs::absolute(place, unreadable).string()));
}

// Finds the data that the user names, or those that the file's names mean here. A file with classes
// and words needs no training texts.
void find_data(settings::Config& config, const fs::path& weights, const EvalOptions& options,
               const fs::path& data_dir, bool needs_training_file, EvalResult& result) {
  find_places(config, weights);
  if (!options.test_file.empty()) config.test_file = options.test_file;
  const auto is_in_data_dir = [&](const std::string& place) {
    return !data_dir.empty() && is_there(data_dir / fs::path(place).filename());
  };
  if (data_dir.empty()) guess_place(config.data_dir, weights, result);
  if (needs_training_file && !is_in_data_dir(config.train_file))
    guess_place(config.train_file, weights, result);
  if (options.test_file.empty() && !is_in_data_dir(config.test_file))
    guess_place(config.test_file, weights, result);
  for (std::string* place : {&config.data_dir, &config.train_file, &config.test_file})
    if (is_base_name(*place) && !is_there(*place)) look_in(weights.parent_path(), *place);
  const bool is_published = !config.data.empty() && data::data_set(config.data).is_published();
  if (is_published && is_base_name(config.data_dir) && !is_there(config.data_dir))
    config.data_dir.clear();  // where such sets are on this machine
  const bool is_of_environment = options.data_dir.empty();
  const bool has_own =
      is_of_environment && is_there(config.data_dir) &&
      settings::gives_way_to_own_folder({"data-dir", data_dir, "DEMI_DATA_DIR"}, config);
  if (!data_dir.empty() && !has_own) {
    config.data_dir = data_dir;
    look_in(data_dir, config.train_file);
    if (options.test_file.empty()) look_in(data_dir, config.test_file);
  }
  if (needs_training_file)
    require_there(config.train_file,
                  "the training file, whose words this older model file numbers texts by,",
                  "--data-dir names the folder that it is in");
  require_there(config.test_file, "the test file",
                "--test-file names it, or --data-dir the folder that it is in");
}

// An option that this data set has no use for.
void require_use(const settings::Config& config, const EvalOptions& options) {
  const data::Layout layout = data::data_set(config.data).layout;
  if (options.test_file.empty() || layout == data::Layout::csv || layout == data::Layout::text)
    return;
  throw UsageError({.where = "--test-file",
                    .what = "the model was not trained on texts of files",
                    .seen = config.data,
                    .accepted = "models of csv data and of running texts",
                    .advice = "--data-dir names the folder of other data"});
}

// The classes and words of the file count.
workload::Workload test_data(const settings::Config& config, c10::Device device,
                             const std::shared_ptr<const workload::ModelData>& model,
                             EvalResult& result) {
  if (!model) return workload::load_workload(config, device);
  workload::Workload workload = workload::load_test_data(settings::resolve(config, device), model);
  result.unknown_words = workload.unknown_test;
  if (workload.unknown_test && *workload.unknown_test > 0)
    result.notes.push_back(workload::say_unknown(*workload.unknown_test, *model));
  if (!workload.note_on_data.empty()) result.notes.push_back(workload.note_on_data);
  return workload;
}

// Requires --test-file for a folder of Hugging Face's, which does not name its training data.
void require_text(const workload::ModelTexts& texts, const fs::path& path,
                  const EvalOptions& options) {
  if (!texts.is_huggingface) return;
  if (options.test_file.empty())
    throw UsageError({.where = "--test-file",
                      .what = path.string() + " does not say what it was trained on",
                      .seen = "no text to test on",
                      .accepted = "--test-file TEXT"});
  if (!texts.no_tokenizer.empty())
    throw DataError({.where = "recipes.evaluate_saved",
                     .what = "a text has no numbers for the model of " + path.string(),
                     .seen = texts.no_tokenizer,
                     .accepted = "byte pairs in GPT-2's form beside it"});
}

void note_older(const workload::ModelTexts& texts, EvalResult& result) {
  if (texts.description || data::data_set(texts.config.data).kind == data::Kind::rows) return;
  result.notes.emplace_back(
      "the file is of an older demi and has no classes and no words: they are made of the data, "
      "which must be those of the training");
}

// A model file whose config is that of an evaluation, with the places of its data.
struct Opened {
  workload::ModelFile file;
  std::shared_ptr<const workload::ModelData> data;  // its classes and words; null: an older file
  c10::Device device;
};

Opened open(const fs::path& path, const EvalOptions& options, EvalResult& result) {
  workload::ModelFile file = workload::read_model_file(path);
  auto classes_and_words = workload::data_of_model(file.texts, path);
  const settings::Config trained = file.texts.config;
  settings::Config& config = file.texts.config = workload::for_evaluation(trained);
  const c10::Device device = pick_device(options.device);
  const fs::path data_dir =
      options.data_dir.empty() ? data::data_dir_of_environment() : options.data_dir;
  if (options.limit < 0)
    throw UsageError({.where = "recipes.evaluate_saved",
                      .what = "limit is out of range",
                      .seen = std::to_string(options.limit),
                      .accepted = "0 (all) or more"});
  const std::string other_network = workload::find_network(file.texts, path, options.graph);
  require_use(config, options);
  require_text(file.texts, path, options);
  if (!other_network.empty()) result.notes.push_back(other_network);
  if (file.texts.is_huggingface) {
    config.train_file = config.test_file = options.test_file;
    require_there(config.test_file, "the test file", "name one that is there");
  } else {
    result.trained_in = file.texts.precision.name;
    if (std::string note = difference_to_run(trained, options); !note.empty())
      result.notes.push_back(std::move(note));
    note_older(file.texts, result);
    find_data(config, path, options, data_dir, classes_and_words == nullptr, result);
  }
  config.test_limit = options.limit;
  return {std::move(file), std::move(classes_and_words), device};
}

// The precisions that are named, or fp32 and the one that the model was trained in.
std::vector<settings::RunSpec> runs_of(const Opened& model, const EvalOptions& options) {
  std::string precisions = options.precisions;
  if (precisions.empty()) {
    const std::string_view trained_in = model.file.texts.precision.name;
    precisions = trained_in == "fp32" ? "fp32" : fmt::format("fp32,{}", trained_in);
  }
  std::vector<settings::RunSpec> runs = settings::parse_runs(precisions);
  for (const settings::RunSpec& run : runs) workload::require_meaning(run);
  return runs;
}

void require_test(const workload::Workload& workload, const settings::Config& config,
                  const EvalOptions& options) {
  if (!workload.test)
    throw UsageError({.where = "recipes.evaluate_saved",
                      .what = "the model was trained on data without a test set",
                      .seen = config.data});
  if (options.top_k > 0 && config.loss == "bce")
    throw UsageError({.where = "--top-k",
                      .what = "the model has one output, which is among the k likeliest always",
                      .seen = std::to_string(options.top_k),
                      .advice = "leave it out"});
}

train::Evaluation evaluate_one(const settings::RunSpec& spec, const Opened& model,
                               const workload::Workload& workload, int64_t top_k) {
  const settings::Resolved run = settings::resolve(model.file.texts.config, spec, model.device);
  train::EvaluateOptions options{.precision = spec.precision,
                                 .device = model.device,
                                 .op_policy = run.op_policy,
                                 .loss = run.loss,
                                 .flush_subnormals = run.config.flush_subnormals,
                                 .backends = run.backends};
  if (top_k > 0) options.metrics = {train::top_k(top_k)};
  return train::evaluate(workload::saved_network(run, workload.make_network(0), model.file.weights,
                                                 model.file.texts.steps),
                         *workload.test, options);
}

}  // namespace

EvalResult evaluate_saved(const std::filesystem::path& path, const EvalOptions& options) {
  EvalResult result;
  const Opened model = open(path, options, result);
  const settings::Config& config = model.file.texts.config;
  const std::vector<settings::RunSpec> runs = runs_of(model, options);
  const workload::Workload workload = test_data(config, model.device, model.data, result);
  require_test(workload, config, options);
  result.top_k = workload::top_k_of(workload, options.top_k > 0 ? options.top_k : config.top_k);
  std::optional<double> fp32;
  for (const settings::RunSpec& spec : runs) {
    result.runs.push_back(
        {.precision = spec.label, .evaluation = evaluate_one(spec, model, workload, result.top_k)});
    if (spec.label == "fp32") fp32 = result.runs.back().evaluation.accuracy;
  }
  for (EvalRow& run : result.runs)
    if (fp32 && run.evaluation.accuracy) run.difference_to_fp32 = *run.evaluation.accuracy - *fp32;
  return result;
}

}  // namespace demi::recipes

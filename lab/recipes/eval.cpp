#include "lab/recipes/eval.h"

#include <fmt/format.h>

#include <algorithm>

#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "demi/train/evaluate.h"
#include "lab/data/data_sets.h"
#include "lab/data/locate.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/config_source.h"
#include "lab/recipes/machine.h"
#include "lab/recipes/resolved.h"
#include "lab/recipes/weights_file.h"
#include "lab/recipes/workload.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

train::Network loaded(const Resolved& run, const Workload& workload,
                      const checkpoint::NamedTensors& weights) {
  const train::Precision& precision = run.spec.precision;
  train::Network network = workload.make_network(0);
  load_weights(*network.module, weights);
  if (precision.is_mixed()) {
    to_precision(*network.module, precision.shipped());
    keep_in_fp32(run, network);
  } else {
    network.module->to(precision.weights);
  }
  return network;
}

// A run may have been tested on a part of the test set, or on its training batches.
std::string difference_to_run(const Config& run, const EvalOptions& options) {
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

// A weights file has the base names of its data. In the folder of its run config.json has the
// places.
void find_places(Config& config, const fs::path& weights) {
  const fs::path record = weights.parent_path() / "config.json";
  std::error_code unreadable;
  if (!fs::is_regular_file(weights, unreadable) || !is_there(record)) return;
  const auto take = [](std::string& base, const std::string& place) {
    if (fs::path(place + "/").lexically_normal().parent_path().filename() == base) base = place;
  };
  try {
    for (const Assignment& a : read_config_file(record).values) {
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

// What has that base name in the folder is meant.
void look_in(const fs::path& folder, std::string& place) {
  const fs::path there = folder / fs::path(place).filename();
  if (!place.empty() && is_there(there)) place = there;
}

void require_file(const std::string& file) {
  if (file.empty() || is_there(file)) return;
  throw DataError({.where = "train.evaluate_saved",
                   .what = "the data that the model was trained on are not here",
                   .seen = file,
                   .accepted = "a file that exists",
                   .advice = "--data-dir names the folder that it is in"});
}

// Data that the user names, or what the file's names mean here.
void find_data(Config& config, const fs::path& weights, const fs::path& data_dir) {
  find_places(config, weights);
  for (std::string* place : {&config.data_dir, &config.train_file, &config.test_file})
    if (is_base_name(*place) && !is_there(*place)) look_in(weights.parent_path(), *place);
  const bool is_published = !config.data.empty() && data::data_set(config.data).is_published();
  if (is_published && is_base_name(config.data_dir) && !is_there(config.data_dir))
    config.data_dir.clear();  // where such sets are on this machine
  if (!data_dir.empty()) {
    config.data_dir = data_dir;
    look_in(data_dir, config.train_file);
    look_in(data_dir, config.test_file);
  }
  require_file(config.train_file);
  require_file(config.test_file);
}

// A saved model has neither gradients nor a scale.
void require_meaning(const RunSpec& run) {
  const bool scales = run.loss_scale.kind != train::LossScale::Kind::automatic;
  if (!scales && run.skip && run.autocast) return;
  throw UsageError({.where = "--precision",
                    .what = "a test has no gradients to scale or to skip, and is in a region as "
                            "shipped",
                    .seen = run.label,
                    .accepted = "a precision, with fp32-part=NAME or op-policy=FILE if wanted"});
}

}  // namespace

EvalResult evaluate_saved(const std::filesystem::path& path, const EvalOptions& options) {
  WeightsInfo info = weights_info(path);
  const c10::Device device = pick_device(options.device);
  const std::filesystem::path data_dir =
      options.data_dir.empty() ? data::data_dir_of_environment() : options.data_dir;
  find_data(info.config, path, data_dir);
  if (options.limit < 0)
    throw UsageError({.where = "train.evaluate_saved",
                      .what = "limit is out of range",
                      .seen = std::to_string(options.limit),
                      .accepted = "0 (all) or more"});
  EvalResult result{.trained_in = std::string(info.precision.name),
                    .note = difference_to_run(info.config, options)};
  info.config.limit = info.config.overfit_batches = 0;
  info.config.test_limit = options.limit;
  const bool trained_in_fp32 = result.trained_in == "fp32";
  const auto runs = !options.precisions.empty() ? parse_runs(options.precisions)
                    : trained_in_fp32           ? parse_runs("fp32")
                                                : parse_runs("fp32," + result.trained_in);
  const Workload workload = load_workload(info.config, device);
  for (const RunSpec& run : runs) require_meaning(run);
  if (!workload.test)
    throw UsageError({.where = "train.evaluate_saved",
                      .what = "the model was trained on data without a test set",
                      .seen = info.config.data});
  if (options.top_k > 0 && info.config.loss == "bce")
    throw UsageError({.where = "--top-k",
                      .what = "the model has one output, which is among the k likeliest always",
                      .seen = std::to_string(options.top_k),
                      .advice = "leave it out"});
  result.top_k = train::top_k_of(options.top_k > 0 ? options.top_k : info.config.top_k,
                                 static_cast<int64_t>(workload.classes.size()));
  std::vector<train::Metric> metrics;
  if (result.top_k > 0) metrics = {train::top_k(result.top_k)};
  std::optional<double> fp32;
  const checkpoint::NamedTensors weights = read_weights(path);
  for (const RunSpec& spec : runs) {
    const Resolved run = resolve(info.config, spec, device);
    const train::Evaluation evaluation =
        train::evaluate(loaded(run, workload, weights), *workload.test,
                        {.precision = spec.precision,
                         .device = device,
                         .op_policy = run.op_policy,
                         .loss = run.loss,
                         .metrics = metrics,
                         .flush_subnormals = run.config.flush_subnormals,
                         .backends = run.backends});
    if (spec.label == "fp32") fp32 = evaluation.accuracy;
    result.runs.push_back({.precision = spec.label, .evaluation = evaluation});
  }
  for (EvalRow& run : result.runs)
    if (fp32 && run.evaluation.accuracy) run.difference_to_fp32 = *run.evaluation.accuracy - *fp32;
  return result;
}

}  // namespace demi::recipes

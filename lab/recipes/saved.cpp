#include "lab/recipes/saved.h"

#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "demi/train/evaluate.h"
#include "lab/data/locate.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/machine.h"
#include "lab/recipes/plan.h"
#include "lab/recipes/weights_file.h"
#include "lab/recipes/workload.h"

namespace demi::train {
namespace {

Network loaded(const Config& config, const Workload& workload,
               const checkpoint::NamedTensors& weights, const Precision& precision) {
  Network network = workload.make_network(0);
  load_weights(*network.module, weights);
  if (precision.is_mixed()) {
    to_precision(*network.module, precision.shipped());
    keep_in_fp32(config, network);
  } else {
    network.module->to(precision.weights);
  }
  return network;
}

}  // namespace

SavedResult evaluate_saved(const std::filesystem::path& path, const SavedOptions& options) {
  WeightsInfo info = weights_info(path);
  const c10::Device device = pick_device(options.device);
  const std::filesystem::path data_dir =
      options.data_dir.empty() ? data::data_dir_of_environment() : options.data_dir;
  if (!data_dir.empty()) info.config.data_dir = data_dir;
  if (options.limit < 0)
    throw UsageError({.where = "train.evaluate_saved",
                      .what = "limit is out of range",
                      .seen = std::to_string(options.limit),
                      .accepted = "0 (all) or more"});
  info.config.limit = 0;
  info.config.test_limit = options.limit;
  SavedResult result{.trained_in = std::string(info.precision.name)};
  const bool trained_in_fp32 = result.trained_in == "fp32";
  const auto runs = !options.precisions.empty() ? parse_runs(options.precisions)
                    : trained_in_fp32           ? parse_runs("fp32")
                                                : parse_runs("fp32," + result.trained_in);
  const Workload workload = load_workload(info.config, device);
  if (!workload.test)
    throw UsageError({.where = "train.evaluate_saved",
                      .what = "the model was trained on data without a test set",
                      .seen = info.config.data});
  result.top_k = top_k_of(options.top_k > 0 ? options.top_k : info.config.top_k,
                          static_cast<int64_t>(workload.classes.size()));
  std::vector<Metric> metrics;
  if (result.top_k > 0) metrics = {top_k(result.top_k)};
  std::optional<double> fp32;
  const checkpoint::NamedTensors weights = read_weights(path);
  for (const RunSpec& run : runs) {
    const Config config = config_of(info.config, run);
    const Network network = loaded(config, workload, weights, run.precision);
    const Evaluation evaluation = evaluate(network, *workload.test,
                                           {.precision = run.precision,
                                            .device = device,
                                            .op_policy = op_policy_of(config),
                                            .loss = loss_function_of(config),
                                            .metrics = metrics,
                                            .flush_subnormals = info.config.flush_subnormals});
    if (run.label == "fp32") fp32 = evaluation.accuracy;
    result.runs.push_back({.precision = run.label, .evaluation = evaluation});
  }
  for (SavedRun& run : result.runs)
    if (fp32 && run.evaluation.accuracy) run.difference_to_fp32 = *run.evaluation.accuracy - *fp32;
  return result;
}

}  // namespace demi::train

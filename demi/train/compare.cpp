#include "demi/train/compare.h"

#include <torch/utils.h>

#include "demi/profile/memory.h"
#include "demi/train/trainer.h"
#include "demi/train/weights_file.h"

namespace demi::train {
namespace {

// A label as part of a file name: "fp16:scale=128" becomes "fp16-scale-128".
std::string file_name(const RunSpec& spec, std::string_view suffix) {
  std::string name = spec.label;
  for (char& c : name) {
    if (c == ':' || c == '=') c = '-';
  }
  return name.append(suffix);
}

TrainerOptions trainer_options(const CompareOptions& options, const RunSpec& spec,
                               int64_t steps_per_epoch) {
  TrainerOptions result;
  result.epochs = options.recipe.epochs;
  result.precision = spec.precision;
  result.loss_scale = spec.loss_scale;
  result.loss = options.recipe.loss;
  result.device = options.device;
  result.schedule = make_schedule(options.recipe, steps_per_epoch * options.recipe.epochs);
  result.momentum_schedule =
      make_momentum_schedule(options.recipe, steps_per_epoch * options.recipe.epochs);
  result.should_stop = options.should_stop;
  return result;
}

void quiet_down(c10::Device device) {
  profile::synchronize(device);
  profile::release_unused_memory(device);
  profile::reset_peak_memory(device);
  profile::reset_peak_resident_memory();
}

void take_memory(RunResult& result, c10::Device device) {
  result.peak_bytes = profile::memory_use(device).peak_bytes;
  result.peak_resident_bytes = profile::resident_memory().peak_bytes;
}

// The mean over whole epochs, or over what there was where not even one was finished.
double mean_epoch_seconds(const History& history) {
  const std::size_t whole = history.epochs.size() - (history.stopped || history.failed ? 1 : 0);
  if (whole == 0) return history.seconds();
  double sum = 0;
  for (std::size_t i = 0; i < whole; ++i) sum += history.epochs[i].seconds;
  return sum / static_cast<double>(whole);
}

RunResult run_one(const CompareOptions& options, const RunSpec& spec, const RecipeData& data) {
  const Recipe& recipe = options.recipe;
  quiet_down(options.device);
  RunResult result{.spec = spec};
  Network network = make_network(recipe.model, data.shape, options.seed, options.device);
  torch::manual_seed(options.seed);
  const auto optimizer = make_optimizer(recipe, network);
  Trainer trainer(network, optimizer, trainer_options(options, spec, data.train->batches()));
  for (const auto& callback : options.callbacks) trainer.add(callback);
  result.history = trainer.fit(*data.train, data.test.get());
  take_memory(result, options.device);
  result.seconds = result.history.seconds();
  result.seconds_per_epoch = mean_epoch_seconds(result.history);
  result.skipped_steps = result.history.skipped_steps;

  result.checkpoint_bytes =
      save_training_state(*network.module, *optimizer, result.history,
                          options.folder / file_name(spec, "-last.safetensors"));
  if (result.history.stopped) return result;
  // The accuracy is that of the file, so the file is what is evaluated: written from one module,
  // read into another.
  const std::filesystem::path file = options.folder / file_name(spec, "-model.safetensors");
  Network shipped = make_network(recipe.model, data.shape, options.seed, options.device);
  result.model_bytes = save_shipped_weights(*network.module, *shipped.module, spec.precision, file);
  shipped = make_network(recipe.model, data.shape, options.seed + 1, options.device);
  load_shipped_weights(*shipped.module, spec.precision, file);
  const Evaluation test =
      evaluate(shipped, *data.test, spec.precision, options.device, recipe.loss);
  result.test_loss = test.loss;
  result.test_accuracy = test.accuracy.value_or(0);
  network.module->to(c10::kFloat);
  result.test_accuracy_fp32_eval =
      evaluate(network, *data.test, parse_precision("fp32"), options.device, recipe.loss)
          .accuracy.value_or(0);
  return result;
}

}  // namespace

std::vector<RunSpec> default_runs(c10::Device device) {
  return {parse_run("fp32"), parse_run(mixed_precision_of(device.type()).name)};
}

Comparison compare(const CompareOptions& options, const RecipeData& data) {
  Comparison result{.recipe = options.recipe,
                    .machine = machine(options.device),
                    .seed = options.seed,
                    .training_examples = data.train->examples(),
                    .test_examples = data.test->examples(),
                    .steps_per_epoch = data.train->batches()};
  for (const RunSpec& spec : options.runs) {
    const std::string warning = slow_precision_warning(spec.precision, options.device);
    if (!warning.empty()) result.notes.push_back(spec.label + ": " + warning);
    if (options.on_run_begin) options.on_run_begin(spec);
    result.runs.push_back(run_one(options, spec, data));
    RunResult& run = result.runs.back();
    run.speedup = result.runs.front().seconds_per_epoch / run.seconds_per_epoch;
    if (run.history.failed) result.notes.push_back(spec.label + ": " + *run.history.failed);
    if (run.history.stopped) {
      result.stopped = true;
      break;
    }
  }
  return result;
}

}  // namespace demi::train

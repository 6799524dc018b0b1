#include "demi/train/run.h"

#include <c10/util/Exception.h>
#include <torch/utils.h>

#include "demi/core/error.h"
#include "demi/models/registry.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "demi/train/evaluate.h"
#include "demi/train/plan.h"
#include "demi/train/trainer.h"
#include "demi/train/weights_file.h"

namespace demi::train {
namespace {

// The mean over whole epochs, or over what there was where not even one was finished.
double mean_epoch_seconds(const History& history) {
  const std::size_t whole = history.epochs.size() - (history.stopped || history.failed ? 1 : 0);
  if (whole == 0) return history.seconds();
  double sum = 0;
  for (std::size_t i = 0; i < whole; ++i) sum += history.epochs[i].seconds;
  return sum / static_cast<double>(whole);
}

// Writes what one would ship whenever validation is better than ever.
class KeepBest : public Callback {
 public:
  KeepBest(Trainer& trainer, const Network& network, const Workload& workload, const Config& config,
           const Precision& precision, std::filesystem::path file)
      : trainer_(trainer),
        network_(network),
        workload_(workload),
        config_(config),
        precision_(precision),
        file_(std::move(file)) {}

  void on_epoch_end(const EpochRecord& epoch) override {
    if (!epoch.validation || (any_ && !epoch.validation->better_than(best_))) return;
    any_ = true;
    best_ = *epoch.validation;
    const Trainer::AverageInPlace average(trainer_);
    const Network spare = workload_.make_network(static_cast<uint64_t>(config_.seed));
    save_shipped_weights(*network_.module, *spare.module, precision_, file_, config_);
  }

 private:
  Trainer& trainer_;
  const Network& network_;
  const Workload& workload_;
  const Config& config_;
  const Precision& precision_;
  std::filesystem::path file_;
  Evaluation best_;
  bool any_ = false;
};

// The accuracy is that of the file, so the file is what is evaluated: written from one module, read
// into another.
void test_shipped(RunResult& result, const Config& config, const Workload& workload,
                  const Network& network, c10::Device device, const RunOptions& options) {
  const auto seed = static_cast<uint64_t>(config.seed);
  const Precision& precision = result.spec.precision;
  Network shipped = workload.make_network(seed);
  if (!options.folder.empty()) {
    const auto file = options.folder / (options.prefix + "model.safetensors");
    result.model_bytes =
        save_shipped_weights(*network.module, *shipped.module, precision, file, config);
    shipped = workload.make_network(seed + 1);
    load_shipped_weights(*shipped.module, precision, file);
  }
  if (!workload.test) return;
  EvaluateOptions test{.precision = precision, .device = device, .loss = parse_loss(config.loss)};
  test.per_class = options.per_class;
  test.flush_subnormals = config.flush_subnormals;
  if (!options.folder.empty()) {
    const Evaluation low = evaluate(shipped, *workload.test, test);
    result.test_loss = low.loss;
    result.test_accuracy = low.accuracy;
    result.class_accuracy = low.class_accuracy;
  }
  network.module->to(c10::kFloat);
  test.precision = parse_precision("fp32");
  result.test_accuracy_fp32_eval = evaluate(network, *workload.test, test).accuracy;
}

RunResult train_and_test(const Config& config, const RunSpec& spec, const Workload& workload,
                         c10::Device device, const RunOptions& options) {
  RunResult result{.spec = spec};
  const auto seed = static_cast<uint64_t>(config.seed);
  const Network network = workload.make_network(seed);
  result.parameters = models::parameter_count(*network.module);
  keep_in_fp32(config, network);
  torch::manual_seed(seed);
  TrainerOptions told = trainer_options(config, spec, workload.train->batches(), device);
  told.should_stop = options.should_stop;
  const auto optimizer = make_optimizer(config, network);
  Trainer trainer(network, optimizer, std::move(told));
  if (options.keep_best && workload.test) {
    trainer.add(
        std::make_shared<KeepBest>(trainer, network, workload, config, result.spec.precision,
                                   options.folder / (options.prefix + "best-model.safetensors")));
  }
  for (const auto& callback : options.callbacks) trainer.add(callback);
  result.history = trainer.fit(*workload.train, workload.test.get());
  result.peak_bytes = profile::memory_use(device).peak_bytes;
  result.peak_resident_bytes = profile::resident_memory().peak_bytes;
  result.seconds = result.history.seconds();
  result.seconds_per_epoch = mean_epoch_seconds(result.history);
  result.skipped_steps = result.history.skipped_steps;
  if (!options.folder.empty()) {
    result.checkpoint_bytes =
        save_training_state(*network.module, *optimizer, result.history,
                            options.folder / (options.prefix + "last.safetensors"));
  }
  if (result.history.stopped) return result;
  trainer.swap_average();  // what is shipped, and tested, is the average where there is one
  test_shipped(result, config, workload, network, device, options);
  return result;
}

}  // namespace

RunResult run(const Config& config, const RunSpec& spec, const Workload& workload,
              c10::Device device, const RunOptions& options) {
  profile::quiet_down(device);
  std::string reason;
  try {
    return train_and_test(config, spec, workload, device, options);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    reason = error.what();
  }
  profile::quiet_down(device);
  const std::string fits = std::to_string(find_batch_size(config, spec, workload, device));
  throw TrainingError(
      {.where = "train.run",
       .what = "memory ran out in the run " + spec.label,
       .seen = "batch size " + config.batch_size + "; " + reason.substr(0, reason.find('\n')),
       .advice =
           "--batch-size " + fits + " fits in 80 % of what is free (--batch-size auto finds it)"});
}

}  // namespace demi::train

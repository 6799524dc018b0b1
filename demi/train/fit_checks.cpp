#include "demi/train/fit_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "demi/core/error.h"
#include "demi/train/agreement.h"
#include "demi/train/bf16_agreement.h"

namespace demi::train {
namespace {

// Whether the two shapes differ at the epoch's end alone. Ranks leave out examples that they cannot
// share evenly, so another number of ranks may cut the same data differently there, by less than a
// batch. The part of the epoch that was read shows the size of a batch.
bool differs_at_the_end_alone(const Progress& progress, const EpochShape& now, int64_t batch_now) {
  const EpochShape& then = progress.shape;
  if (progress.position == 0 || progress.position >= std::min(then.batches, now.batches))
    return false;
  const int64_t batch = progress.epoch.examples / progress.position;
  return then.accumulate == now.accumulate && progress.window.sums.examples == 0 &&
         progress.epoch.examples % progress.position == 0 && batch == batch_now &&
         std::abs(now.examples - then.examples) < batch &&
         std::abs(now.batches - then.batches) <= 1;
}

}  // namespace

FitData::FitData(const Setup& setup, const data::Loader& training_data,
                 const data::Loader* validation_data, int64_t of_epochs)
    : training(training_data), validation(validation_data), epochs(of_epochs) {
  const bool uneven = setup.ranks.are_several() && setup.options.distributed.uneven_batches;
  batches = uneven ? setup.ranks.greatest(training.batches()) : training.batches();
}

void check_resumed(const Setup& setup, const FitData& data, const Progress& resumed) {
  const EpochShape &then = resumed.shape, now = data.shape(setup.options);
  if (!resumed.in_epoch || then == now) return;
  const int64_t ranks = setup.ranks.are_several() ? setup.ranks.group()->world_size() : 1;
  const data::Batch first = data.training.batch(resumed.epochs_begun - 1, 0);
  if (differs_at_the_end_alone(resumed, now, data::examples_of(first) * ranks)) return;
  const auto text = [](const EpochShape& shape) {
    return fmt::format("{} batches, {} examples, {} batches a step", shape.batches, shape.examples,
                       shape.accumulate);
  };
  throw UsageError({.where = "train.Trainer.resume",
                    .what = "the checkpoint is from the middle of an epoch of other batches",
                    .seen = text(now),
                    .accepted = text(then),
                    .advice = "use the data, batch size and accumulation that it was saved with"});
}

void check_data(const Setup& setup, const FitData& data) {
  const auto require = [](bool good, const char* what, const std::string& seen,
                          const char* accepted, const char* advice) {
    if (!good)
      throw UsageError({.where = "train.Trainer.fit",
                        .what = what,
                        .seen = seen,
                        .accepted = accepted,
                        .advice = advice});
  };
  require(data.training.all_examples() > 0 && data.batches > 0, "there is nothing to train on",
          fmt::format("{} examples in {} batches", data.training.all_examples(), data.batches),
          "one batch or more", "a last batch that is left out (drop_last) may be the only one");
  require(!data.validation || data.validation->all_examples() > 0,
          "there is nothing to validate on", "no examples", "one or more, or no validation", "");
  require(data.validation || setup.options.early_stopping == 0,
          "early stopping needs a validation, and there is none",
          fmt::format("early_stopping {}", setup.options.early_stopping), "a validation, or 0",
          "give fit() the data to validate on");
  require(data.validation || !setup.options.checkpoints.keep_best ||
              setup.options.checkpoints.folder.empty(),
          "the best checkpoint is that of a validation, and there is none",
          "checkpoints.keep_best true", "a validation, or false",
          "give fit() the data to validate on");
  if (data.validation) check(setup.network, "train.Trainer.fit");
}

// Before the first step: ranks that differ here would leave each other, or wait for each other.
void require_same_on_ranks(const Setup& setup, const FitData& data, const Progress& begin) {
  if (!setup.ranks.are_several()) return;
  std::string text = fmt::format("epochs {}\n", data.epochs) + agreement_on(setup);
  text += fmt::format("{} batches of training\n{} examples of training\n", data.batches,
                      data.training.all_examples());
  text +=
      fmt::format("validation {}\n",
                  data.validation ? fmt::format("on {} examples", data.validation->all_examples())
                                  : std::string("none"));
  text += fmt::format("begins after step {} of epoch {}, batch {}, with a sum of losses of {}\n",
                      begin.step, begin.epochs_begun, begin.position, begin.loss_sum);
  setup.ranks.require_same("the training", text);
  warn_if_ranks_differ(setup);
}

// A loader that knows of no other rank gives each all examples: every rank would train on the same.
void require_shared_examples(const Setup& setup, const FitData& data) {
  if (!setup.ranks.are_several()) return;
  const auto examples = [](const data::Loader* loader) {
    return loader ? static_cast<double>(loader->examples()) : 0;
  };
  const std::vector<double> sums =
      setup.ranks.totals({examples(&data.training), examples(data.validation)});
  const int ranks = setup.ranks.group()->world_size();
  const auto require = [&](const data::Loader* loader, double sum, const char* of_what) {
    if (!loader) return;
    const int64_t all = loader->all_examples();
    if (static_cast<double>(all) == sum) return;
    throw UsageError(
        {.where = "train.Trainer",
         .what = fmt::format("the ranks do not share the examples of {}", of_what),
         .seen = fmt::format("{} examples on {} ranks together", sum, ranks),
         .accepted = fmt::format("{}, of which each rank has its own part", all),
         .advice = "make the loader with OrderOptions::rank and world_size; a loader of your own "
                   "says by all_examples() how many all ranks have together"});
  };
  require(&data.training, sums[0], "training");
  require(data.validation, sums[1], "validation");
  if (data.batches == 0)
    throw UsageError(
        {.where = "train.Trainer",
         .what = "there are fewer examples of training than ranks",
         .seen = fmt::format("{} for {} ranks",
                             data.training.all_examples() + data.training.left_out(), ranks),
         .accepted = "one example or more for each rank",
         .advice = "train on fewer ranks, or on more examples"});
}

// Whatever changed them on one rank alone (a callback, a file that was loaded, another machine's
// arithmetic): the ranks would train different models from there on, and rank 0's would be saved.
void require_same_weights(const Setup& setup, const std::string& when) {
  std::string rates;
  for (std::size_t i = 0; i < setup.options.optimizers.size(); ++i) {
    const auto& groups = setup.options.optimizers[i]->param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g)
      rates += fmt::format("optimizer {}, group {}: learning rate {}\n", i, g,
                           groups[g].options().get_lr());
  }
  setup.ranks.require_same_weights(when, rates);
}

}  // namespace demi::train

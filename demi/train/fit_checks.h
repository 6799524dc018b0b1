#pragma once

#include <cstdint>
#include <string>

#include "demi/data/loader.h"
#include "demi/train/progress.h"
#include "demi/train/setup.h"

namespace demi::train {

/// The data of a fit, and its number of epochs. Loaders outlive it.
struct FitData {
  const data::Loader& training;
  const data::Loader* validation;  // none: null
  int64_t epochs;
  /// Batches of an epoch. With uneven_batches the most of any rank: a rank with fewer takes the
  /// steps of the others, too.
  int64_t batches;

  FitData(const Setup& setup, const data::Loader& training, const data::Loader* validation,
          int64_t epochs);
  EpochShape shape(const TrainerOptions& options) const {
    return {batches, training.all_examples(), options.accumulate};
  }
};

// Checks of a fit's arguments, and of those that its ranks must have in common. All of them throw
// UsageError; every rank calls them.

/// Refuses a run from the middle of an epoch of other batches, unless they differ at the epoch's
/// end alone.
void check_resumed(const Setup& setup, const FitData& data, const Progress& resumed);
void check_data(const Setup& setup, const FitData& data);
/// `begin`: where the training begins.
void require_same_on_ranks(const Setup& setup, const FitData& data, const Progress& begin);
void require_shared_examples(const Setup& setup, const FitData& data);
void require_same_weights(const Setup& setup, const std::string& when);

}  // namespace demi::train

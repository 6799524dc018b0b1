#pragma once

#include <cstdint>
#include <string>

#include "demi/data/loader.h"
#include "demi/train/progress.h"
#include "demi/train/setup.h"

namespace demi::train {

/// What a fit trains on, and for how long. Loaders outlive it.
struct FitData {
  const data::Loader& training;
  const data::Loader* validation;  // none: null
  int64_t epochs;
  /// Of an epoch: this rank may have fewer than others, of which it takes the steps too.
  int64_t batches;

  FitData(const Setup& setup, const data::Loader& training, const data::Loader* validation,
          int64_t epochs);
  EpochShape shape(const TrainerOptions& options) const {
    return {batches, training.all_examples(), options.accumulate};
  }
};

// What a fit accepts, and what its ranks have to have in common. All of these throw UsageError; of
// several ranks each calls them.

/// `resumed`: from the middle of an epoch of these batches, if from the middle of one.
void check_resumed(const Setup& setup, const FitData& data, const Progress& resumed);
void check_data(const Setup& setup, const FitData& data);
/// `begin`: where the training begins.
void require_same_on_ranks(const Setup& setup, const FitData& data, const Progress& begin);
void require_shared_examples(const Setup& setup, const FitData& data);
void require_same_weights(const Setup& setup, const std::string& when);

}  // namespace demi::train

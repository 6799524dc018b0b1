#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::settings {

/// The part of a training run that a setting is about.
enum class Part {
  kModel,        // network, data, and how they compute: for any use of the model
  kPrecision,    // which several runs of one command have each
  kLossScale,    // likewise
  kStep,         // the batches of training, and what a step does with them
  kLength,       // when training ends
  kTest,         // how the model is tested
  kCheckpoints,  // which are saved
  kStart,        // the weights, or the run, that it starts from
  kRanks,        // several processes
};

DEMI_API Part part_of_run(std::string_view setting);

/// The names of a part's settings; of the model none, which has all others.
DEMI_API std::span<const std::string_view> settings_of(Part part);

/// The settings that a few training steps of several runs, one after the other in this process,
/// have no use for: all parts but the model and the steps.
DEMI_API std::set<std::string> beyond_steps();

}  // namespace demi::settings

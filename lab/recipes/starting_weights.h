#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/export.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::recipes {

/// Saved weights for a run that starts at step 0.
struct StartingWeights {
  /// `model`: every tensor of the network, under its names. With Config::from_state it also has the
  /// state of the optimizer, without its options, rates and count of steps.
  checkpoint::Checkpoint saved;
  std::vector<std::string> said;  // what was taken, and what differs; the first in any case
};

/// Reads them for a network of that run. FP32 masters are the weights of a 16-bit run. A file may
/// have torchvision's names. If the head (models::head_of) has another shape, that of `network`
/// stays. Throws DataError for any other misfit, with the first three names, for a vocabulary of
/// other words, for a weight that is NaN or Inf and for an average or a state that is not there.
DEMI_API StartingWeights read_start(const settings::Resolved& run,
                                    const workload::Workload& workload,
                                    const torch::nn::Module& network,
                                    const std::filesystem::path& path);

/// Puts them into the network and the optimizer, of any precision, or changes nothing. Throws
/// DataError for a weight beyond fp16's range, and for the state of another rule or of other
/// parameters.
DEMI_API void put(const StartingWeights& start, torch::nn::Module& network,
                  torch::optim::Optimizer& optimizer);

/// Does both with networks that are thrown away, so that what does not fit one of the runs is
/// refused before any is begun. Returns notes for the user.
DEMI_API std::vector<std::string> check_start(std::span<const settings::Resolved> runs,
                                              const workload::Workload& workload,
                                              const std::filesystem::path& path);

}  // namespace demi::recipes

#pragma once

#include <memory>

#include "demi/checkpoint/safetensors.h"
#include "lab/recipes/config.h"
#include "lab/recipes/workload.h"

namespace demi::predict {

/// What an older file of pictures does not say of its data, from its settings and its tensors: as
/// many classes as the network's last layer has, with their numbers for names. Throws DataError if
/// no such network has these tensors.
std::shared_ptr<const recipes::ModelData> data_of_older_file(
    const recipes::Config& config, const checkpoint::NamedTensors& weights);

}  // namespace demi::predict

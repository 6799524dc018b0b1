#pragma once

#include <memory>

#include "demi/checkpoint/safetensors.h"
#include "lab/settings/config.h"
#include "lab/workload/workload.h"

namespace demi::predict {

/// The data that an older file of pictures lacks, from its settings and its tensors: as many
/// classes as the network's last layer has, with their numbers for names. Throws DataError if no
/// such network has these tensors.
std::shared_ptr<const workload::ModelData> data_of_older_file(
    const settings::Config& config, const checkpoint::NamedTensors& weights);

}  // namespace demi::predict

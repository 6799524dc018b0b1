#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>

#include "demi/core/export.h"
#include "lab/recipes/config.h"
#include "lab/recipes/run_spec.h"
#include "lab/recipes/workload.h"

namespace demi::train {

/// Whether the exception says that memory ran out, of a device or of the host.
DEMI_API bool is_out_of_memory(const std::exception& error);

/// Bytes that one example of synthetic data takes as long as the run lasts; 0 if the config's data
/// are not synthetic.
DEMI_API int64_t synthetic_bytes(const Config& config);

/// The largest batch size whose training step fits in 80 % of the free memory of the device: found
/// by trial steps of two sizes, an extrapolation, and one trial of the result. At most the number
/// of training examples; synthetic data are made for the batch size, so they get as many examples
/// as fit in memory beside the step. Throws TrainingError if 8 examples do not fit.
DEMI_API int64_t find_batch_size(const Config& config, const RunSpec& spec,
                                 const Workload& workload, c10::Device device);

/// The search of find_batch_size: the largest size, at most `most`, whose `peak` (bytes; infinite:
/// memory ran out) is at most `room`. Extrapolates the peaks of 8 and 32 in a straight line, tries
/// the result, and makes it smaller until it fits. Throws TrainingError if 8 do not fit.
DEMI_API int64_t largest_batch(const std::function<double(int64_t)>& peak, double room,
                               int64_t most);

}  // namespace demi::train

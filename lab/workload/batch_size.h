#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>

#include "demi/core/export.h"
#include "lab/settings/config.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::workload {

/// Whether the exception says that memory ran out, of a device or of the host.
DEMI_API bool is_out_of_memory(const std::exception& error);

/// A trial of the search: four training steps with a batch of that size.
struct BatchTrial {
  int64_t size = 0;         // examples of a batch
  double needed_bytes = 0;  // by a whole run; infinite: memory ran out
  double room_bytes = 0;    // that the run may take
};

/// Options of the search for a batch size.
struct BatchSearch {
  /// Free memory of the device; 0: profile::free_memory().
  int64_t free_bytes = 0;
  /// Called after each trial.
  std::function<void(const BatchTrial&)> tried;
};

/// The largest batch size with which a run is predicted to take at most 80 % of the free memory of
/// the device, as largest_batch finds it. Counted are the tensors of a training step, with what
/// its graphs hold beside them, or of an evaluation's batch if these are more, and on a CPU what
/// the process takes more than before the search if that is more; synthetic data, which are made
/// for the batch size; the copy of the state from which a checkpoint is written; and on a CPU what
/// the holes take that a heap has in the end, a third of a trial and a tenth of the rest. A trial
/// on a CPU has a limit of its own and is never larger than half of what is predicted to fit, since
/// the system would end the process rather than refuse memory. At most the number of training
/// examples. Throws TrainingError if 8 examples or a test batch do not fit.
DEMI_API int64_t find_batch_size(const settings::Resolved& run, const Workload& workload,
                                 const BatchSearch& search = {});

/// The search of find_batch_size: the largest size, at most `most`, whose `peak` (bytes; infinite:
/// memory ran out) is at most `room`. From 8 and 32 on each trial is at most eight times the one
/// before and at most half of what is predicted by the line through the last one that fits and one
/// of at most half its size; the result is at most twice the largest trial that fits, or that trial
/// itself if a larger one did not. If 32 do not fit, those between are tried by the line through
/// both, until at most a tenth is missing. Throws TrainingError if 8 do not fit.
DEMI_API int64_t largest_batch(const std::function<double(int64_t)>& peak, double room,
                               int64_t most);

}  // namespace demi::workload

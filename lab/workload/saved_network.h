#pragma once

#include <cstdint>
#include <optional>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"
#include "demi/train/network.h"
#include "lab/settings/config.h"
#include "lab/settings/resolved.h"
#include "lab/settings/run_spec.h"

namespace demi::workload {

/// A new network with the weights of a saved model, in the formats of the run's precision: of a
/// mixed one as it is shipped, 16-bit with normalisation in FP32; of a "true" one all in its
/// format. `steps`: that it was trained; recipes that were over at the last of them, by their
/// `until`, are over here, and all that have an `until` if it is not known. Throws DataError if
/// names or shapes do not fit.
DEMI_API train::Network saved_network(const settings::Resolved& run, train::Network made,
                                      const checkpoint::NamedTensors& weights,
                                      std::optional<std::int64_t> steps);

/// The settings by which a saved model is computed: those that only a training reads have their
/// defaults, since they need not fit another precision.
DEMI_API settings::Config for_evaluation(settings::Config config);

/// The run in which a saved model of that config is computed: a precision with variants, as
/// parse_run has it, that require_meaning accepts, on a device by its name. Throws UsageError,
/// DeviceError.
DEMI_API settings::Resolved resolve_saved(settings::Config config, std::string_view precision,
                                          std::string_view device);

/// Throws UsageError for a run with a variant that a saved model has no use for: it has neither
/// gradients nor a scale.
DEMI_API void require_meaning(const settings::RunSpec& run);

}  // namespace demi::workload

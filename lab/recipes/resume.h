#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "demi/core/export.h"
#include "lab/recipes/run_record.h"
#include "lab/settings/config.h"
#include "lab/settings/config_source.h"

namespace demi::recipes {

/// Whether a setting may differ in a resumed run.
enum class OnResume {
  kSame,    // it decides the bits of the weights or what is measured
  kLonger,  // it says when training ends: may be raised, where no schedule is made for it
  kAny,     // where and how it runs: device, places of files, workers, checkpoints
  kNewRun,  // precision, weight mode and loss scale: with another one the run resumes in a folder
            // of its own
};

/// The rule for the setting of that name.
DEMI_API OnResume on_resume(std::string_view setting);

/// The settings of a resumed run: those that it was begun with, and of `given` those that may
/// differ; of several with one name the last counts. Settings in `given` with the value that they
/// had are accepted; so are batch-size auto and precision mixed, which were found when it began.
/// With another number of ranks, batch_size becomes the one that keeps the batch of all ranks
/// together, and may be given as that. A time limit (stop_after) counts only if it is given: that
/// of `begun` was its process's. `run` names it in messages. Throws UsageError for a setting that
/// may not differ, with the old and the new value.
DEMI_API settings::Config resumed_config(const settings::Config& begun,
                                         std::span<const settings::Assignment> given,
                                         const std::filesystem::path& run);

/// The change that makes it another run (OnResume::kNewRun), as "precision fp16, begun with fp32";
/// "": none.
DEMI_API std::string change_of_precision(const settings::Config& begun,
                                         const settings::Config& now);

/// The first setting that a resumed run may not change and that differs, as "lr is 0.1, not
/// 0.5", or that makes it another run; "": none. batch-size auto and precision mixed agree with
/// what they may have become; a batch size that is not among the `given` settings agrees with the
/// same one of another number of ranks, who will share it.
DEMI_API std::string first_difference(const settings::Config& begun, const settings::Config& now,
                                      std::span<const settings::Assignment> given = {});

/// The settings of a run's config.json against those in the checkpoints that it resumes, whose
/// manifests have a checksum. Throws UsageError with key and both values for one that may not
/// differ.
DEMI_API void require_saved_settings(const std::filesystem::path& run_folder,
                                     const RunRecord& record);

}  // namespace demi::recipes

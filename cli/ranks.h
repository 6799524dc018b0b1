#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "demi/distributed/process_group.h"
#include "lab/settings/config.h"
#include "lab/settings/config_source.h"

namespace demi::cli {

/// `given`, and behind it the number of ranks that torchrun, mpirun, srun or `demi` itself started,
/// if it is more than one. Throws UsageError if `given` says another one, DeviceError as
/// distributed::read_ranks.
std::vector<settings::Assignment> with_launched_ranks(std::vector<settings::Assignment> given);

/// Starts the program once more for each rank, on this machine, with the same arguments, if there
/// are several ranks and none of them is started. Rank 0 has stdout and stderr; lines on stderr of
/// the others begin with their rank. Signals are passed on. Returns false if there is nothing to
/// start; else, when all have ended, true, or throws Exit with the exit code of the rank that ended
/// first with an error, or 4 if a signal ended it. If one rank ends with an error, so do the
/// others. If a signal ended rank 0, names the last checkpoint and the command that resumes it.
bool run_as_ranks(const std::string& command, const settings::Config& config);

/// Whether run_as_ranks() started this process.
bool has_launcher();
/// Whether this process prints what is known before the ranks meet. Of the ranks that `demi`
/// started none does, since `demi` has printed it; of others rank 0 does.
bool speaks_for_all();
/// Tells the process that started this one, if has_launcher(), the folder of the run.
void tell_launcher(const std::filesystem::path& run_folder);

/// The device on which this rank trains. Several ranks on GPUs have one each, unless config names
/// one. Throws as pick_device.
c10::Device device_of_this_rank(const settings::Config& config);

/// The ranks that train together, of which this process is one. Null for one process. Each call
/// makes a new one. Throws UsageError on every rank if program, command, recipe or settings differ,
/// and DeviceError as distributed::ProcessGroup.
std::shared_ptr<distributed::ProcessGroup> meet_ranks(const std::string& command,
                                                      const std::string& recipe,
                                                      const settings::Config& config);

}  // namespace demi::cli

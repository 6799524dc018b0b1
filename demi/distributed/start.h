#pragma once

#include <memory>

#include "demi/distributed/launch.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/store.h"

// How a process of a job starts: its number, and the store through which it meets the others.
namespace demi::distributed {

/// Throws UsageError for the first option that cannot be.
void check_options(const ProcessGroupOptions& options);

/// The rank of this process: that of the options or of their init method, which `method` is, else
/// what the launcher says in the environment. Throws DeviceError for a rank that is out of range or
/// given in part.
Ranks ranks_of(const ProcessGroupOptions& options, const InitMethod& method);

/// The store of the init method; rank 0 serves it, if neither a file nor torchrun's agent does.
/// Throws DeviceError if it does not answer within ProcessGroupOptions::start_timeout.
std::shared_ptr<Store> store_of(const ProcessGroupOptions& options, const InitMethod& method,
                                const Ranks& ranks);

}  // namespace demi::distributed

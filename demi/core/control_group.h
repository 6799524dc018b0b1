#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "demi/core/export.h"

namespace demi {

/// The memory and processor time that this process's control groups leave it: those of a container,
/// of a systemd unit (MemoryMax, CPUQuota), of a batch system's job. nullopt: there is no limit.
struct ControlGroupLimits {
  std::optional<std::int64_t> free_bytes;  // file pages that the kernel can drop count as free
  std::optional<double> cores;             // the quota: processor seconds a second
};

/// Reads them: the process's own group and those around it, of version 1 and 2, as far as they are
/// mounted; the least counts. `root` is "/" except in tests. Does not throw: a limit that cannot be
/// read does not count.
DEMI_API ControlGroupLimits control_group_limits(const std::filesystem::path& root = "/");

}  // namespace demi

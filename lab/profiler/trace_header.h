#pragma once

#include <filesystem>

#include "demi/core/export.h"

namespace demi::profiler {

/// Blanks the name of this machine, which Kineto writes at the beginning of a trace: such files are
/// shared. The name's bytes become spaces, in place, so that a big file is not written again. False
/// if the file cannot be opened for writing; true without a change if it holds no such name.
DEMI_API bool blank_host_name(const std::filesystem::path& trace);

}  // namespace demi::profiler

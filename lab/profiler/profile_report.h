#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/profiler/profile_run.h"
#include "lab/report/html_page.h"
#include "lab/report/table.h"

namespace demi::profiler {

/// The precisions beside each other, the phases of a step, the same ops side by side, and the
/// kernels that ran. The others are compared with the first run.
DEMI_API std::vector<report::Table> to_tables(const Profile& profile);

/// The tables with bars of phases and ops. `command` is the line that profiles again.
DEMI_API report::Page to_page(const Profile& profile, const std::string& command);

/// A JSON object with everything: all ops, not only the longest.
DEMI_API nlohmann::ordered_json json_of(const Profile& profile);

}  // namespace demi::profiler

#pragma once

#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/models/imported.h"
#include "lab/report/table.h"
#include "lab/settings/resolved.h"

namespace demi::workload {

/// "a, b, c, and 4 more"
std::string first_few(const std::vector<std::string>& names);

/// Tables about a network from Python, to be read before it is trained: its inputs, outputs and
/// parameters, and how many batch norms run with what follows them; the precisions and modules in
/// which its operations compute in a region on the run's device; the casts that were fixed when it
/// was exported. `notes`: what the file leaves open (ImportedModel::notes).
DEMI_API std::vector<report::Table> tables_of(const models::ImportedFile& file,
                                              const std::vector<std::string>& notes,
                                              const settings::Resolved& run);

}  // namespace demi::workload

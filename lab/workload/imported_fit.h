#pragma once

#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/models/imported.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::workload {

/// Checks a network from Python before it is trained: its inputs have the sizes of the data's
/// examples and accept each batch that the loaders give, the last one too, in both modes; its
/// output fits loss and classes. It is tried on one value. Throws UsageError, which explains how to
/// export it instead. Returns ImportedModel::notes.
DEMI_API std::vector<std::string> try_network(const models::ImportedFile& file,
                                              const settings::Resolved& run,
                                              const Workload& workload);

}  // namespace demi::workload

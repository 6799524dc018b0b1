#pragma once

#include <filesystem>
#include <string>

#include "demi/core/export.h"
#include "lab/workload/model_file.h"

namespace demi::workload {

/// Sets the path of a saved model's .pt2 file in texts.config.model: `graph` if that is given; else
/// the path in the config, or in the config.json beside the weights, or a file beside them. Throws
/// DataError if it is at none of these, or is another network than the weights were trained in, and
/// UsageError for a `graph` of a model that is no such network. Returns a note for people if
/// `graph` is another network, which the user may intend; else "". Other models stay as they are.
DEMI_API std::string find_network(ModelTexts& texts, const std::filesystem::path& weights,
                                  const std::filesystem::path& graph);

/// imported::FileSummary::identity of the config's .pt2 file; "" of another model.
std::string network_identity(const settings::Config& config);

/// Throws DataError if the config's .pt2 file is another network than the model's. `file`: the
/// model's, for the message. An older file has no identity, and fits any.
void require_same_network(const settings::Config& config, const std::string& identity,
                          const std::string& file);

}  // namespace demi::workload

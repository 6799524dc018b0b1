#pragma once

#include <filesystem>

#include "cli/output.h"

namespace demi::cli {

/// Whether inspect reads the file as a network that PyTorch exported: by its name, NAME.pt2.
bool is_exported_network(const std::filesystem::path& file);

/// Prints its graphs and tensors. With `verify` the weights are read and every operation is looked
/// up.
void show_exported_network(const std::filesystem::path& file, bool verify, const Output& output);

}  // namespace demi::cli

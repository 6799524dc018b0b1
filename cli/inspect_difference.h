#pragma once

#include <string>

#include "cli/output.h"

namespace demi::cli {

/// demi inspect --diff: prints what differs between two files or checkpoints. Throws DataError.
void show_difference(const std::string& first, const std::string& second, const Output& output);

}  // namespace demi::cli

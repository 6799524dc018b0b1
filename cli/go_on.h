#pragma once

#include <filesystem>
#include <string>

namespace demi::cli {

/// Names on stderr the last checkpoints in a run's folder, and the line that goes on from them.
/// Nothing if there is none.
void say_how_to_go_on(const std::string& command, const std::filesystem::path& run_folder);

}  // namespace demi::cli

#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace demi::cli {

/// The folders of checkpoints in a run's folder checkpoints/ that hold one: itself, or one for each
/// of its runs.
std::vector<std::filesystem::path> checkpoint_folders(const std::filesystem::path& folder);

/// Names on stderr the last checkpoints in a run's folder, and the line that goes on from them.
/// Nothing if there is none. `when` says what has to be done first.
void say_how_to_go_on(const std::string& command, const std::filesystem::path& run_folder,
                      std::string_view when = {});

}  // namespace demi::cli

#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "demi/core/export.h"

namespace demi::recipes {

/// The checkpoint, the file or the folder of Hugging Face's that Config::from means. A run's
/// folder, or a folder of checkpoints, means its newest whole checkpoint; `passed_over` is called
/// with each damaged one that is newer, and with what is wrong with it. Throws DataError if there
/// is none; for a file that torch.save wrote, with the lines of Python that make a safetensors file
/// of it.
DEMI_API std::filesystem::path find_start(
    const std::filesystem::path& from,
    const std::function<void(const std::filesystem::path&, const std::string&)>& passed_over);

}  // namespace demi::recipes

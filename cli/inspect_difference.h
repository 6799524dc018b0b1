#pragma once

#include <filesystem>
#include <string>

#include "cli/output.h"
#include "demi/checkpoint/contents.h"

namespace demi::cli {

/// The contents of a safetensors file, of a checkpoint or a path that names one, or of a folder of
/// Hugging Face's. Throws DataError.
checkpoint::Contents contents_of(const std::filesystem::path& path);

/// demi inspect --diff: prints the differences between two files or checkpoints. Throws DataError.
void show_difference(const std::string& first, const std::string& second, const Output& output);

}  // namespace demi::cli

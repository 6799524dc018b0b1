#pragma once

#include <filesystem>

namespace demi::imported {

/// Whether the file is an archive of TorchScript (torch.jit.save). Throws DataError for a damaged
/// archive; a file that is none is false.
bool is_script_file(const std::filesystem::path& path);

/// Reads each record of such an archive, and compares its checksum, which LibTorch does not. Throws
/// DataError: for a record that is damaged, and for a file that was made for the lite interpreter.
void check_script_file(const std::filesystem::path& path);

}  // namespace demi::imported

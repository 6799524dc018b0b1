#pragma once

#include <filesystem>

#include "demi/imported/zip_archive.h"

namespace demi::imported {

/// Throws DataError if the file's first bytes are not those of a zip archive: says what the file is
/// instead, and how a network is exported.
void require_zip(const std::filesystem::path& path, std::string_view where);

/// Throws DataError if torch.export.save did not write the archive in its present form: says what
/// it is instead, and how to export it.
void require_exported_program(const ZipArchive& archive, std::string_view where);

}  // namespace demi::imported

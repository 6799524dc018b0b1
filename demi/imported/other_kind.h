#pragma once

#include <filesystem>

#include "demi/imported/zip_archive.h"

namespace demi::imported {

/// Throws DataError, which names the file's kind and explains how to export a network, if the first
/// bytes are not those of a zip archive.
void require_zip(const std::filesystem::path& path, std::string_view where);

/// Throws DataError, which names the archive's kind and explains how to export, if
/// torch.export.save did not write it in its present form.
void require_exported_program(const ZipArchive& archive, std::string_view where);

}  // namespace demi::imported

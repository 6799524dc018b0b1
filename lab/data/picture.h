#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::data {

/// A JPEG or PNG file as (H, W, 3) uint8 RGB: grey is given three times, CMYK and YCCK are
/// converted as Adobe writes them, transparency is left out, EXIF's orientation is not applied. The
/// content tells the format, not the name. Throws DataError with the path for a file that cannot be
/// opened, is truncated, damaged or no picture, and UsageError if this build has no decoder for
/// it.
DEMI_API at::Tensor read_picture(const std::filesystem::path& file);

/// What read_picture can decode in this build: "JPEG, PNG".
DEMI_API std::string picture_formats();

}  // namespace demi::data

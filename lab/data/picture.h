#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/damage.h"

namespace demi::data {

/// A JPEG or PNG file as (H, W, 3) uint8 RGB, with the pixels of Pillow and torchvision: samples as
/// they are in the file (no gamma), the upper 8 of 16 bits, grey three times, CMYK and YCCK
/// converted as Adobe writes them, transparency left out, EXIF's orientation not applied. The
/// content decides the format, not the name. Throws DataError with the path for a file that cannot
/// be opened, is truncated, damaged or no picture (with another `report`: undefined), and
/// UsageError if this build has no decoder for it.
DEMI_API at::Tensor read_picture(const std::filesystem::path& file,
                                 const DamageReport& report = report_damage);

/// What read_picture can decode in this build: "JPEG, PNG".
DEMI_API std::string picture_formats();

}  // namespace demi::data

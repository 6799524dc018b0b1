#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "lab/files/damage.h"

namespace demi::data {

/// A JPEG or PNG file as (H, W, 3) uint8 RGB, with the pixels of Pillow and torchvision: samples as
/// they are in the file (no gamma), the upper 8 of 16 bits, grey three times, CMYK and YCCK
/// converted as Adobe writes them, transparency left out, EXIF's orientation not applied. The
/// content decides the format, not the name. Throws DataError with the path for a file that cannot
/// be opened, is truncated, damaged or no picture (with another `report`: undefined), and
/// UsageError if this build has no decoder for it.
DEMI_API at::Tensor read_picture(const std::filesystem::path& file,
                                 const files::DamageReport& report = files::report_damage);

/// The formats that read_picture can decode in this build: "JPEG, PNG".
DEMI_API std::string picture_formats();

/// A decoder's result for a file: the picture, or the reason why there is none.
struct DecodedPicture {
  at::Tensor picture;     // (H, W, 3) uint8
  std::string damage;     // empty where there is a picture
  std::string size = {};  // of one that has more pixels than kMostPixels; no damage
};

/// Pixels that a picture may have: 0.8 GB decoded.
constexpr int64_t kMostPixels = int64_t{1} << 28;

/// The decoders, each in a file of its own; without its library a stub with the same name throws
/// UsageError.
DecodedPicture decode_jpeg(std::string_view bytes);
DecodedPicture decode_png(std::string_view bytes);
bool has_jpeg();
bool has_png();

[[noreturn]] void no_decoder(std::string_view format, std::string_view package);

}  // namespace demi::data

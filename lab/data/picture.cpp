#include "lab/data/picture.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "demi/core/error.h"
#include "lab/data/damage.h"
#include "lab/data/picture_decoder.h"

namespace demi::data {
namespace {

constexpr std::string_view kReadPicture = "data.read_picture";
constexpr std::string_view kJpeg = "\xff\xd8\xff", kPng = "\x89PNG\r\n\x1a\n";

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in)
    report_damage({.where = kReadPicture,
                   .file = file,
                   .what = "cannot be opened",
                   .found = std::strerror(errno),
                   .expected = "a picture",
                   .advice = "mend the permissions, or take the file out of the folder"});
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string first_bytes(std::string_view bytes) {
  if (bytes.empty()) return "an empty file";
  std::string text = "it begins with";
  for (const char byte : bytes.substr(0, 4))
    text += fmt::format(" {:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

void no_decoder(std::string_view format, std::string_view package) {
  throw UsageError(
      {.where = kReadPicture,
       .what = fmt::format("this build of demi cannot decode {}", format),
       .seen = picture_formats().empty() ? "no decoder at all" : picture_formats() + " only",
       .advice = fmt::format("install {} and configure and build demi again", package)});
}

std::string picture_formats() {
  std::string formats = has_jpeg() ? "JPEG" : "";
  if (has_png()) formats += formats.empty() ? "PNG" : ", PNG";
  return formats;
}

at::Tensor read_picture(const std::filesystem::path& file) {
  const std::string bytes = bytes_of(file);
  const bool jpeg = bytes.starts_with(kJpeg), png = bytes.starts_with(kPng);
  if (!jpeg && !png)
    report_damage({.where = kReadPicture,
                   .file = file,
                   .what = "not a picture",
                   .found = first_bytes(bytes),
                   .expected = "JPEG (ff d8 ff) or PNG (89 50 4e 47)"});
  Decoded decoded = jpeg ? decode_jpeg(bytes) : decode_png(bytes);
  if (!decoded.picture.defined())
    report_damage({.where = kReadPicture,
                   .file = file,
                   .what = fmt::format("the {} is damaged", jpeg ? "JPEG" : "PNG"),
                   .found = decoded.damage,
                   .expected = "a whole picture",
                   .advice = "get an undamaged copy of the file, or take it out of the folder"});
  return std::move(decoded.picture);
}

}  // namespace demi::data

#include "lab/data/picture.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/git_lfs.h"
#include "lab/open_text.h"

namespace demi::data {
namespace {

constexpr std::string_view kReadPicture = "data.read_picture";
constexpr std::string_view kJpeg = "\xff\xd8\xff", kPng = "\x89PNG\r\n\x1a\n";

std::optional<std::string> bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  return lab::rest_of(in);
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
  refuse({.where = kReadPicture,
          .what = fmt::format("this build of demi cannot decode {}", format),
          .seen = picture_formats().empty() ? "no decoder at all" : picture_formats() + " only",
          .advice = fmt::format("install {} and configure and build demi again", package)});
}

std::string picture_formats() {
  std::string formats = has_jpeg() ? "JPEG" : "";
  if (has_png()) formats += formats.empty() ? "PNG" : ", PNG";
  return formats;
}

at::Tensor read_picture(const std::filesystem::path& file, const files::DamageReport& report) {
  const auto damaged = [&](std::string_view what, std::string found, std::string expected,
                           std::string_view advice =
                               "get an undamaged copy of the file, or take it out of the folder") {
    report({.where = kReadPicture,
            .file = file,
            .what = what,
            .found = std::move(found),
            .expected = std::move(expected),
            .advice = advice});
    return at::Tensor();
  };
  const std::optional<std::string> bytes = bytes_of(file);
  if (!bytes)
    return damaged("cannot be read", std::strerror(errno), "a picture",
                   "mend the permissions, or take the file out of the folder");
  if (is_git_lfs_pointer(*bytes))
    return damaged("the picture is not there", kGitLfsPointer, "a picture", kGitLfsAdvice);
  const bool jpeg = bytes->starts_with(kJpeg), png = bytes->starts_with(kPng);
  if (!jpeg && !png)
    return damaged("not a picture", first_bytes(*bytes), "JPEG (ff d8 ff) or PNG (89 50 4e 47)");
  DecodedPicture decoded = jpeg ? decode_jpeg(*bytes) : decode_png(*bytes);
  if (!decoded.size.empty())
    return damaged("the picture is too large", decoded.size,
                   fmt::format("{} pixels at most", kMostPixels),
                   "scale it down, or take it out of the folder");
  if (!decoded.picture.defined())
    return damaged(jpeg ? "the JPEG is damaged" : "the PNG is damaged", decoded.damage,
                   "a whole picture");
  return std::move(decoded.picture);
}

}  // namespace demi::data
